"""``loopwise show``: what a loop resolves to and what it costs, from a config.json alone."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from ..cost import describe, read_shape
from ..loops import CallSite, Loop, call_sites, format_loop, format_loops, parse_loops
from ..nets.sizes import PREFIX, named
from .console import UsageError, print_json, table


@dataclass(frozen=True)
class Command:
    """Resolved layers, call sites and cost of a loop. No weights are needed.

    Example: loopwise show HuggingFaceTB/SmolLM2-135M-Instruct --loops "10:14 x2 damped beta=0.5"
    Example: loopwise show nets:arloop-140m
    """

    model: Annotated[str, tyro.conf.Positional]
    """A Hugging Face id, a folder, a config.json, smollm2, or a network to train, e.g. nets:arloop-140m."""
    loops: str | None = None
    """The loops, e.g. "10:14 x2", "10-13 x2 damped beta=0.25 + 10.mlp x3 in pass 1"; default: the folder's own loop.json."""
    sites: bool = False
    """List every call site."""
    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        config = named(self.model).as_config() if self.model.startswith(PREFIX) else find_config(self.model)
        shape = read_shape(config)
        given = _own_loops(config) if self.loops is None and isinstance(config, Path) else self.loops or "none"
        loops = shape.loops_run(parse_loops(given, shape.num_layers))
        found = {"model": self.model, "loops": format_loops(loops), **describe(shape, loops)}
        sites = call_sites(loops, shape.num_layers)
        if self.json:
            print_json(found | {"call_sites": [_site(site) for site in sites]} if self.sites else found)
            return
        print(_text(found, loops))
        if self.sites:
            print("\n" + table([_row(site) for site in sites], ("site", "layer", "part", "pass", "slot")))


def find_config(model: str) -> Path:
    """The config.json of a model that is named by id, folder or file; only that file is downloaded.

    Raises:
        UsageError: there is none.
    """
    path = Path(model).expanduser()
    if path.is_file():
        return path
    if path.is_dir():
        if not (path / "config.json").exists():
            raise UsageError(f"{path} holds no config.json; give a folder with a Hugging Face model")
        return path / "config.json"
    if model == "smollm2":
        from ..models import resolve

        return resolve(model).folder / "config.json"
    if model.count("/") > 1 or model.startswith((".", "/", "~")) or model.endswith(".json"):
        raise UsageError(f"model {model!r}: no such file or folder")
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(model, "config.json"))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = " ".join(str(error).split())[:160]
        raise UsageError(f"model {model!r}: neither a folder nor to be had from the hub ({reason}); check the name") from None


def _own_loops(config: Path) -> str:
    sidecar = config.parent / "loop.json"
    if not sidecar.exists():
        return "none"
    try:
        return str(json.loads(sidecar.read_text(encoding="utf-8"))["loops"])
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"{sidecar}: the sidecar is damaged; insert the loop again, or give --loops") from None


def _site(site: CallSite) -> dict[str, Any]:
    return {name: getattr(site, name) for name in ("index", "layer", "part", "passes", "visit", "slot")}


def _row(site: CallSite) -> list[str]:
    passes = ".".join(map(str, site.passes)) or "-"
    return [str(site.index), str(site.layer), site.part, passes, "-" if site.slot is None else str(site.slot)]


def _text(found: dict[str, Any], loops: tuple[Loop, ...]) -> str:
    lines = [f"{found['model']}: {found['num_layers']} layers, {found['parameters']:,} parameters"]
    for loop in loops:
        layers = f"layer {loop.start}" if loop.stop == loop.start + 1 else f"layers {loop.start} to {loop.stop - 1}"
        what = "the MLP half of " if loop.part == "mlp" else ""
        passes = "1 pass" if loop.passes == 1 else f"{loop.passes} passes"
        how = "repeated" if loop.operator == "repeat" else f"damped, beta {loop.beta:g}"
        where = f", only in pass {loop.in_pass} of the loop around it" if loop.in_pass else ""
        lines.append(f"  {format_loop(loop)}: {what}{layers}, {passes}, {how}{where}")
    lines += [
        f"  layer passes    {found['num_layers']} -> {found['layer_passes']:.4g} ({found['layer_pass_ratio']:.3f}x)",
        f"  FLOPs per token {found['flops_per_token']:.4g} ({found['flops_ratio']:.3f}x, head included)",
        f"  KV per token    {found['kv_bytes_per_token']:,.0f} bytes ({found['kv_bytes_ratio']:.3f}x)",
    ]
    return "\n".join(lines)
