"""Reading a config.json: which family it is, and every field that its cost depends on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .families import COMPOSITES, FAMILIES, FULL, LINEAR, SLIDING, Family

_NULLABLE = frozenset({"num_key_value_heads", "sliding_window"})
"""Fields that may be null although the family has a default for them."""
_MAY_BE_ZERO = frozenset({"max_window_layers", "num_experts", "sliding_window"})


class CostError(ValueError):
    """A configuration or a question that has no cost: the message names the thing, the value and the remedy in one line."""


def read_fields(config: Mapping[str, Any] | str | Path) -> tuple[str, dict[str, Any]]:
    """The family of a configuration and its fields, with the family's defaults where it is silent and ``layer_types`` resolved.

    Args:
        config: the contents of a config.json, its path, or a folder that holds one.

    Raises:
        CostError: no such file, not JSON, an unknown ``model_type``, or a field with a value that cannot be.
    """
    values, where = read_config(config)
    name, values = _language_model(values, where)
    family = FAMILIES[name]
    for field, reason in family.refused.items():
        if values.get(field):
            raise CostError(f"{where}: {field} is {values[field]!r}: {reason}; its cost as a looped decoder is not defined")
    if values.get("per_layer_config"):
        raise CostError(f"{where}: per_layer_config gives layers shapes of their own; only uniform {name} models are supported")
    fields = {field: _value(family, values, field, where) for field in family.defaults}
    fields["layer_types"] = _layer_types(family, values, fields, f"{where} ({name})")
    _derive(fields, f"{where} ({name})")
    return name, fields


def read_config(config: Mapping[str, Any] | str | Path) -> tuple[Mapping[str, Any], str]:
    """The contents of a config.json as they stand, and what messages call it.

    Raises:
        CostError: no such file, or not JSON.
    """
    return (config, "the configuration") if isinstance(config, Mapping) else _read_json(Path(config))


def _read_json(path: Path) -> tuple[Mapping[str, Any], str]:
    file = path / "config.json" if path.is_dir() else path
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise CostError(f"{file}: no such file; give a config.json or a folder that holds one") from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise CostError(f"{file}: not JSON; give a model's config.json") from None
    if not isinstance(values, dict):
        raise CostError(f"{file}: holds {type(values).__name__}, not a JSON object; give a model's config.json")
    return values, str(file)


def _language_model(values: Mapping[str, Any], where: str) -> tuple[str, Mapping[str, Any]]:
    """The family, and the part of the configuration that describes its decoder."""
    name = values.get("model_type")
    if name in FAMILIES:
        return str(name), values
    if not isinstance(name, str) or name not in COMPOSITES:
        raise CostError(f"{where}: unknown model_type {name!r}; supported: {', '.join(sorted({*FAMILIES, *COMPOSITES}))}")
    composite, text = COMPOSITES[name], values.get("text_config")
    if not isinstance(text, Mapping):
        raise CostError(f"{where}: model_type {name!r} without a text_config; give the whole config.json")
    nested = text.get("model_type", composite.text)
    if nested not in (composite.text, name):
        raise CostError(f"{where}: text_config has model_type {nested!r}, not {composite.text!r}")
    if composite.tied_by == "whole":
        default = FAMILIES[composite.text].defaults["tie_word_embeddings"]
        text = {**text, "tie_word_embeddings": values.get("tie_word_embeddings", default)}
    return composite.text, text


def _value(family: Family, values: Mapping[str, Any], field: str, where: str) -> Any:
    default = family.defaults[field]
    name = next((name for name in (family.aliases.get(field, field), field) if name in values), None)
    if name is None:
        return default
    value = values[name]
    if value is None:
        if default is None or field in _NULLABLE:
            return None
        raise CostError(f"{where}: {name} is null; give a value, or leave it out for {default!r}")
    if field in ("layer_types", "mlp_only_layers", "no_rope_layers"):
        wanted, right = "a list", isinstance(value, list)
    elif isinstance(default, bool):
        wanted, right = "true or false", isinstance(value, bool)
    else:
        least = 0 if field in _MAY_BE_ZERO else 1
        wanted, right = f"a whole number of at least {least}", isinstance(value, int) and not isinstance(value, bool) and value >= least
    if not right:
        raise CostError(f"{where}: {name} is {value!r}; give {wanted}")
    return value


def _layer_types(family: Family, values: Mapping[str, Any], fields: dict[str, Any], where: str) -> list[str]:
    rope, count = fields.get("no_rope_layers"), fields["num_hidden_layers"]
    if rope is not None and len(rope) < count:
        raise CostError(f"{where}: no_rope_layers has {len(rope)} entries for {count} layers")
    derived = family.layer_types(fields)
    given: list[str] | None = fields["layer_types"]
    if given is None:
        return derived
    if len(given) != count:
        raise CostError(f"{where}: layer_types has {len(given)} entries for {count} layers; each layer has one")
    if not family.reads_layer_types:
        if given != derived:
            raise CostError(f"{where}: layer_types differs from what this family runs; leave it out or name the right model_type")
        return derived
    kinds = (FULL, LINEAR) if LINEAR in derived or "linear_num_key_heads" in fields else (FULL, SLIDING)
    for layer, kind in enumerate(given):
        if kind not in kinds:
            raise CostError(f"{where}: layer {layer} has layer_type {kind!r}; supported: {', '.join(kinds)}")
    return given


def _derive(fields: dict[str, Any], where: str) -> None:
    """Fill in the fields that transformers derives from others, and check that they fit together."""
    heads = fields["num_attention_heads"]
    if fields["num_key_value_heads"] is None:
        fields["num_key_value_heads"] = heads
    if fields["head_dim"] is None:
        fields["head_dim"] = fields["hidden_size"] // heads
    if fields["head_dim"] < 1 or heads % fields["num_key_value_heads"]:
        raise CostError(
            f"{where}: {heads} heads do not fit hidden_size {fields['hidden_size']} and {fields['num_key_value_heads']} KV heads"
        )
    if fields["intermediate_size"] is None:
        fields["intermediate_size"] = 4 * fields["hidden_size"]
    if fields.get("use_sliding_window") is False:
        fields["sliding_window"] = None
    if SLIDING in fields["layer_types"] and not fields["sliding_window"]:
        raise CostError(f"{where}: layer_types has {SLIDING} layers but no sliding_window is in force; set sliding_window")
