"""Loops in vLLM itself, on a CPU: the own engine's tokens, room for the cache, sidecars. `make test-vllm` runs these."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from loopwise.cost import cost_of, read_shape
from loopwise.decoding import DecodingRule
from loopwise.decoding import generate as own_generate
from loopwise.evaluation import evaluate
from loopwise.models import Loaded, insert, load, loops_of, save
from loopwise.serving import EngineGap, VllmEngine, VllmHost, generate, load_engine, measure_gap
from loopwise.serving.configured import LOOPS
from parrot import char_tokenizer
from test_evaluation import make_task
from tiny import tiny_model, tokens
from unrolled import unrolled_model

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # one process, so that a test can look into the engine
os.environ.setdefault("VLLM_CPU_CI_ENV", "1")  # no warm-up, and torch.compile without inductor
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
vllm = pytest.importorskip("vllm", reason="vLLM is not installed here; make test-vllm")

EVERYTHING = "1:4 x2 damped beta=0.25 + 1.mlp x3 damped beta=0.5 in pass 1 + 5.mlp x2"
NESTED = "1:5 x2 + 2:4 x2 in pass 2 + 0.mlp x2"
LENGTHS = (9, 4, 33, 1, 70, 17)
BUDGET = 40
CACHE_BYTES = 64 << 20
_KERNELS = dict(hidden_size=64, head_dim=32, linear_key_head_dim=128, linear_value_head_dim=128)
"""The smallest heads of attention that vLLM's kernels for CPUs have, and those of Qwen3.5's linear attention."""


_TWELVE = dict(num_hidden_layers=12, layer_types=["linear_attention", "linear_attention", "full_attention"] * 4)


def prompts() -> list[list[int]]:
    return [tokens(1, length, seed=length)[0].clamp(max=100).tolist() for length in LENGTHS]


@cache
def plain_folder(family: str, where: Path) -> Path:
    changes = _KERNELS if family == "qwen3_5" else {k: v for k, v in _KERNELS.items() if not k.startswith("linear")}
    model = tiny_model(family, tie_word_embeddings=False, **changes)
    model.generation_config.eos_token_id = list(range(2, 8))  # so that rows end at different steps
    save(model, char_tokenizer(None, tags=False), where / family)
    return where / family


@pytest.fixture(scope="module")
def where(tmp_path_factory: Any) -> Path:
    return Path(tmp_path_factory.mktemp("models"))


@contextmanager
def engine_on(folder: Path, **settings: Any) -> Iterator[VllmEngine]:
    engine = load_engine(folder, **(dict(max_tokens=256, max_rows=8, cache_bytes=CACHE_BYTES, eager=True) | settings))
    try:
        yield engine
    finally:
        close(engine.llm)
        del engine
        gc.collect()


def close(llm: Any) -> None:
    from vllm.distributed import cleanup_dist_env_and_memory

    llm.llm_engine.engine_core.shutdown()
    cleanup_dist_env_and_memory()


def sidecar_folder(family: str, loops: str, where: Path) -> Path:
    """A folder with the loop in a sidecar, as `save` leaves it."""
    folder = where / f"{family} {loops}"
    if not folder.exists():
        model, tokenizer = load(plain_folder(family, where))
        save(insert(model, loops), tokenizer, folder)
    return folder


def texts(done: Any) -> list[tuple[Any, ...]]:
    return [(one.token_ids, one.forced_mask, one.stop_reason) for one in done]


RULES = {
    "plain": (DecodingRule(), None),
    "forcing": (DecodingRule(budget_forcing=True, reserve_tokens=12, repetition_stop=True), "so: "),
}


@pytest.mark.parametrize("loops", ["none", "1:4 x2", NESTED, EVERYTHING, "0:6 x3 damped beta=0.25"])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_greedy_tokens_are_the_own_engines_in_fp32_batched_and_single(family, loops, where):
    folder = plain_folder(family, where) if loops == "none" else sidecar_folder(family, loops, where)
    model, tokenizer = load(folder)
    with engine_on(folder) as engine:
        assert (engine.dtype, engine.loops) == ("float32", loops_of(model))
        seen: set[int] = set()
        for rule, opener in RULES.values():
            kept: dict[str, Any] = dict(budget_tokens=BUDGET, rule=rule, answer_opener=opener)
            own = texts(own_generate(model, tokenizer, prompts(), **kept))
            assert texts(generate(engine, tokenizer, prompts(), **kept)) == own
            single = [generate(engine, tokenizer, [prompt], **kept)[0] for prompt in prompts()[:3]]
            assert texts(single) == own[:3]
            seen.update(token for row, _, _ in own for token in row)
        assert any(any(forced) for _, forced, _ in own) and len(seen) > 10
        gap = measure_gap(engine, model, prompts(), new_tokens=32)
    assert gap.ok and gap.tokens_differing == 0 and gap.new_tokens == 32 * len(LENGTHS), gap
    assert loops == "none" or gap.mean_abs_nats_to_plain > 100 * gap.mean_abs_nats, gap


@cache
def bf16_gap(folder: Path, loops: str) -> EngineGap:
    model, _ = load(folder, loops=loops, dtype="bf16")
    with engine_on(folder, loops=loops, dtype="bf16") as engine:
        gap = measure_gap(engine, model, [tokens(1, 20 + n, seed=n)[0].tolist() for n in range(24)], new_tokens=64)
    print(f"\n{folder.name}, {loops}: mean {gap.mean_abs_nats:.5f} nats, to the plain model {gap.mean_abs_nats_to_plain}")
    return gap


@pytest.fixture(scope="module")
def deep(where: Path) -> Path:
    """Qwen3.5 with 12 layers: a loop of two is a sixth more of them, as much as a usual one is."""
    model = tiny_model("qwen3_5", **_KERNELS, **_TWELVE, tie_word_embeddings=False)
    for name, parameter in model.model.layers.named_parameters():
        if parameter.dim() == 2 and "conv1d" not in name:
            parameter.data.mul_(0.5)  # the tiny models' weights are large, and twelve such layers blow every rounding up
    save(model, char_tokenizer(None, tags=False), where / "deep")
    return where / "deep"


@pytest.mark.parametrize("loops", ["5:7 x2", "4:6 x2 damped beta=0.25 + 9.mlp x2"])
def test_qwen3_5_in_bf16_is_as_near_with_a_loop_as_without(deep, loops):
    unlooped, looped = bf16_gap(deep, "none"), bf16_gap(deep, loops)
    assert looped.mean_abs_nats <= 1.2 * unlooped.mean_abs_nats, (looped, unlooped)
    assert looped.ok and looped.mean_abs_nats_to_plain > 2 * looped.mean_abs_nats, looped


def test_qwen3_5_in_bf16_is_as_near_with_a_loop_as_the_same_layers_in_a_row(where):
    folder, loops = plain_folder("qwen3_5", where), "1:4 x2"
    model, tokenizer = load(folder)
    save(unrolled_model(model, [0, 1, 2, 3, 1, 2, 3, 4, 5]), tokenizer, where / "unrolled")
    looped, unrolled = bf16_gap(folder, loops), bf16_gap(where / "unrolled", "none")
    assert looped.mean_abs_nats <= 1.2 * unrolled.mean_abs_nats, (looped, unrolled)
    assert looped.ok


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_room_for_the_cache_is_reported_for_all_call_sites(family, where):
    folder = plain_folder(family, where)
    for loops in ("none", "1:4 x2", NESTED):
        with engine_on(folder, loops=loops) as engine:
            room, shape = engine.capacity, read_shape(engine.config.to_dict())
            token_bytes = cost_of(shape, engine.loops, kv_dtype_bytes=4).kv_bytes_per_token
            assert room.num_blocks == CACHE_BYTES // (token_bytes * room.block_tokens)
            assert room.tokens == room.num_blocks * room.block_tokens
            assert len(engine.llm.llm_engine.vllm_config.compilation_config.static_forward_context) == engine.num_caches


def test_room_for_recurrent_states_shrinks_with_the_call_sites(where):
    rooms = {}
    for loops in ("none", "0:6 x2"):
        with engine_on(plain_folder("qwen3_5", where), loops=loops, dtype="bf16") as engine:
            rooms[loops] = engine.capacity
            assert len(engine.llm.llm_engine.vllm_config.compilation_config.static_forward_context) == engine.num_caches
    assert abs(rooms["0:6 x2"].num_blocks - rooms["none"].num_blocks / 2) <= 1, rooms


def test_plain_vllm_serves_the_folders_loop(where):
    folder = sidecar_folder("llama", EVERYTHING, where)
    model, tokenizer = load(folder)
    params = vllm.SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, detokenize=False)
    asked = [{"prompt_token_ids": prompt} for prompt in prompts()]
    got = []
    for additional in ({}, {LOOPS: "none"}):
        settings = dict(max_model_len=256, enforce_eager=True, kv_cache_memory_bytes=CACHE_BYTES, additional_config=additional)
        llm = vllm.LLM(str(folder), dtype="float32", **settings)
        got.append([tuple(output.outputs[0].token_ids) for output in llm.generate(asked, params, use_tqdm=False)])
        close(llm)
        del llm
        gc.collect()
    own = [one.token_ids for one in own_generate(model, tokenizer, prompts(), budget_tokens=24)]
    assert [row[: len(ours)] for row, ours in zip(got[0], own, strict=True)] == own  # vLLM was told to go on past the ends
    assert got[0] != got[1]


def test_compiled_steps_give_the_same_tokens_for_each_loop(where):
    folder = plain_folder("llama", where)
    for loops in ("1:4 x2", EVERYTHING):
        model, tokenizer = load(folder, loops=loops)
        with engine_on(folder, loops=loops, eager=False) as engine:
            ours = texts(generate(engine, tokenizer, prompts(), budget_tokens=BUDGET))
        assert ours == texts(own_generate(model, tokenizer, prompts(), budget_tokens=BUDGET))


def test_an_engine_in_processes_of_its_own_runs_the_loop(where):
    folder = sidecar_folder("llama", EVERYTHING, where)
    code = (
        "import sys\nfrom loopwise.models import load\nfrom loopwise.serving import load_engine, measure_gap\n"
        "if __name__ == '__main__':\n"
        f"    engine = load_engine({str(folder)!r}, max_tokens=256, max_rows=8, cache_bytes={CACHE_BYTES}, eager=True)\n"
        f"    gap = measure_gap(engine, load({str(folder)!r}).model, [[5, 6, 7], [9, 11]], new_tokens=16)\n"
        "    print(gap)\n    assert gap.ok and gap.mean_abs_nats_to_plain > 100 * gap.mean_abs_nats\n"
    )
    script = where / "own_processes.py"
    script.write_text(code)
    environment = os.environ | {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-2000:]


def test_loaded_models_and_engines_name_the_same_loops(where):
    loaded: Loaded = load(sidecar_folder("qwen3", NESTED, where))
    with engine_on(sidecar_folder("qwen3", NESTED, where), dtype="bf16") as engine:
        assert engine.loops == loops_of(loaded.model) and torch.bfloat16 == getattr(torch, engine.dtype)


@pytest.mark.parametrize("rule", [DecodingRule(), DecodingRule(budget_forcing=True, reserve_tokens=6)])
def test_an_evaluation_gives_the_own_engines_records(rule, where):
    folder = plain_folder("llama", where)
    model, tokenizer = load(folder, loops=EVERYTHING)
    task = make_task()
    own = evaluate(model, tokenizer, task, rule=rule, budget_tokens=24)
    with VllmHost(cache_bytes=CACHE_BYTES) as host:
        run = evaluate(model, tokenizer, task, rule=rule, budget_tokens=24, engine="vllm", host=host)
    assert [replace(one, seconds=0.0) for one in run.records] == [replace(one, seconds=0.0) for one in own.records]
    assert run.header["versions"]["vllm"] == vllm.__version__ and run.header["parity"]["ok"]
