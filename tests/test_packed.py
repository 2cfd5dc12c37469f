"""Packed weights of linear layers: the same products, only where they can be had, and nothing left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from loopwise.decoding import generate, packed
from loopwise.decoding.packed import packed_weights
from tiny import tiny_model, tiny_tokenizer

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(24, 40), nn.Linear(40, 7, bias=False))


def is_packed(linear: nn.Module) -> bool:
    return "forward" in vars(linear)


@pytest.fixture(autouse=True)
def spinning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)


@pytest.mark.parametrize("shape", [(3, 1, 24), (2, 9, 24), (1, 24), (64, 24)])
def test_products_are_those_of_the_layer(shape: tuple[int, ...]) -> None:
    model, inputs = layers(), torch.randn(*shape)
    with torch.inference_mode():
        want = model(inputs)
        with packed_weights(model, 3):
            assert all(map(is_packed, model))
            got, of_a_view = model(inputs), model(inputs.flip(0))
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(of_a_view.flip(0), want, rtol=1e-5, atol=1e-5)
    assert not any(map(is_packed, model))


def test_the_benchmark_runs() -> None:
    script = Path(__file__).resolve().parents[1] / "benchmarks" / "packed_linear.py"
    command = [sys.executable, str(script), "--shapes", "64x32", "--rows", "2", "--repeats", "1", "--threads", "1", "--between", "9999"]
    environment = os.environ | {"PYTHONPATH": str(script.parents[1] / "src")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].split()[:2] == ["64x32", "2"]


def test_a_row_alone_is_packed_where_threads_spin_or_the_weight_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = layers(), torch.randn(1, 1, 24)

    def with_one_row(policy: str | None) -> list[bool]:
        monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
        if policy is not None:
            monkeypatch.setenv("OMP_WAIT_POLICY", policy)
        with torch.inference_mode():
            want = model(inputs)
            with packed_weights(model, 1):
                torch.testing.assert_close(model(inputs), want, rtol=1e-5, atol=1e-5)
                found = list(map(is_packed, model))
            with packed_weights(model, 2):
                assert all(map(is_packed, model))
                assert policy != "passive" or torch.equal(model[0](inputs), nn.functional.linear(inputs, model[0].weight, model[0].bias))
        return found

    assert with_one_row(None) == with_one_row("ACTIVE") == [True, True]
    assert with_one_row("passive") == [False, False]
    monkeypatch.setattr(packed, "LARGE_BYTES", 4 * 40 * 24)
    assert with_one_row("PASSIVE") == [True, False]


def test_what_cannot_be_packed_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Adapted(nn.Linear):
        pass

    model = nn.Sequential(nn.Linear(8, 8).bfloat16(), Adapted(8, 8), nn.Linear(8, 8))
    with packed_weights(model, 4):
        assert [is_packed(layer) for layer in model] == [False, False, True]
    monkeypatch.setattr(packed, "free_memory_bytes", lambda device: 1000)
    with packed_weights(model, 4):
        assert not any(map(is_packed, model))
    monkeypatch.setattr(packed, "free_memory_bytes", lambda device: None)
    with packed_weights(model, 4):
        assert not any(map(is_packed, model))


def test_an_error_leaves_no_copy() -> None:
    model = layers()
    with pytest.raises(ZeroDivisionError), packed_weights(model, 4):
        raise ZeroDivisionError
    assert not any(map(is_packed, model))


def test_a_batch_decodes_packed_and_its_tokens_are_those_without(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = tiny_model("llama"), tiny_tokenizer()
    prompts = [[1, 5, 9], [4, 4], [7, 3, 2, 8, 6]]
    made: list[int] = []

    class Counted(packed._Packed):
        def __init__(self, linear: nn.Linear, num_rows: int) -> None:
            made.append(num_rows)
            super().__init__(linear, num_rows)

    monkeypatch.setattr(packed, "_Packed", Counted)
    got = generate(model, tokenizer, prompts, budget_tokens=12, batch_size=2)
    assert made and set(made) == {2}
    monkeypatch.setattr(packed, "_can_pack", lambda: False)
    want = generate(model, tokenizer, prompts, budget_tokens=12, batch_size=2)
    assert [one.text for one in got] == [one.text for one in want]
    assert not any(is_packed(module) for module in model.modules())
