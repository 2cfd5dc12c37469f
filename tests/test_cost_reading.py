"""Reading a config.json, and what is refused: faults in one line that name the thing, the value and the remedy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from loopwise.cost import COMPOSITES, FAMILIES, CostError, answer_flops, cost_of, read_shape, training_flops_6nd
from loopwise.loops import Loop, LoopError

CONFIG: dict[str, Any] = dict(
    model_type="llama",
    hidden_size=768,
    num_hidden_layers=12,
    num_attention_heads=12,
    num_key_value_heads=4,
    intermediate_size=2048,
    vocab_size=49152,
)
LLAMA = read_shape(CONFIG)


def test_a_config_is_read_from_contents_file_and_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    assert read_shape(tmp_path) == read_shape(str(tmp_path / "config.json")) == LLAMA


def test_every_supported_family_is_named_when_one_is_refused() -> None:
    with pytest.raises(CostError) as refusal:
        read_shape({"model_type": "mamba"})
    message = str(refusal.value)
    assert "'mamba'" in message and "\n" not in message
    assert all(name in message for name in (*FAMILIES, *COMPOSITES))


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"model_type": None}, "unknown model_type None"),
        ({"hidden_size": "768"}, "hidden_size is '768'"),
        ({"hidden_size": 0}, "hidden_size is 0"),
        ({"num_hidden_layers": None}, "num_hidden_layers is null"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes'"),
        ({"num_key_value_heads": 5}, "5 KV heads"),
        ({"layer_types": ["sliding_attention"] * 12}, "layer_types differs"),
        ({"model_type": "qwen3", "layer_types": ["full_attention"]}, "1 entries for 12 layers"),
        ({"model_type": "qwen3", "layer_types": ["linear_attention"] * 12}, "layer 0 has layer_type 'linear_attention'"),
        ({"model_type": "qwen3", "layer_types": ["sliding_attention"] * 12}, "no sliding_window is in force"),
        ({"model_type": "qwen3_5_text", "layer_types": ["sliding_attention"] * 12}, "supported: full_attention, linear_attention"),
        ({"model_type": "smollm3", "no_rope_layers": [1, 0]}, "no_rope_layers has 2 entries"),
        ({"model_type": "gpt2", "add_cross_attention": True}, "add_cross_attention is True"),
        ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, "use_bidirectional_attention is True"),
        ({"model_type": "qwen3_5"}, "without a text_config"),
        ({"model_type": "qwen3_5", "text_config": {"model_type": "llama"}}, "text_config has model_type 'llama'"),
        ({"per_layer_config": {"0": {"hidden_size": 4}}}, "per_layer_config"),
    ],
)
def test_faults_are_named_in_one_line(changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(CostError) as refusal:
        read_shape(CONFIG | changes)
    assert fault in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(("content", "fault"), [(None, "no such file"), ("{", "not JSON"), ("[1]", "holds list")])
def test_unreadable_files_are_named(tmp_path: Path, content: str | None, fault: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(CostError, match=fault) as refusal:
        read_shape(tmp_path)
    assert str(tmp_path / "config.json") in str(refusal.value)


def test_questions_without_an_answer_are_refused() -> None:
    with pytest.raises(CostError, match="unknown FLOPs convention"):
        cost_of(LLAMA, (), convention="8nd")  # type: ignore[arg-type]
    with pytest.raises(CostError, match="no attention-score term"):
        cost_of(LLAMA, (), convention="6nd", context_tokens=10)
    with pytest.raises(CostError, match="context_tokens is 0"):
        cost_of(LLAMA, (), context_tokens=0)
    with pytest.raises(CostError, match="-1 generated"):
        answer_flops(LLAMA, (), prompt_tokens=1, generated_tokens=-1)
    with pytest.raises(CostError, match="N=0"):
        training_flops_6nd(0, 1)
    with pytest.raises(LoopError, match="12 layers"):
        cost_of(LLAMA, [Loop(10, 14)])


def test_cost_needs_no_heavy_library(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    heavy = ("torch", "transformers", "numpy", "scipy")
    code = (
        "import sys; from loopwise.cost import read_shape, describe, Meter; from loopwise.loops import parse_loops\n"
        f"describe(read_shape({str(tmp_path)!r}), parse_loops('4:8 x2'))\n"
        "with Meter(): pass\n"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": ":".join(sys.path)})
    assert done.stdout.strip() == "[]"
