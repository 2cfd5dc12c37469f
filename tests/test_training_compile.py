"""Training with what is read and run between sublayers compiled: the same numbers, and no more graphs than kinds of reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
from torch._dynamo.utils import counters

from loopwise.nets import Recurrence
from loopwise.training import Execution, TrainSettings, read_metrics, train
from training_cases import Walks, fresh_net

SETTINGS = TrainSettings(num_steps=5, learning_rate=3e-3, warmup_steps=2)
EAGER = Execution(device="cpu", checkpoint_every_steps=100)
COMPILED = replace(EAGER, compile=True)
BRANCHES = 3
"""Graphs of the branches: attention with and without a table of values, and the MLP."""
MAKING_SOURCES = 2
"""Graphs of a block's first branch output, and of a further one."""
RECURRENCES = {
    "fixed": None,
    "uniform": Recurrence(kind="uniform", most=3),
    "per sequence": Recurrence(kind="poisson", mean=2, most=3, per_sequence=True),
    "truncated": Recurrence(kind="lognormal_poisson", mean=2, most=3, backprop_loops=1),
}

Graphs = Callable[[], int]


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Graphs]:
    """How many graphs were compiled, by all of the compiler but what makes kernels of a graph, which takes seconds a graph."""
    torch._dynamo.reset()
    counters.clear()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    yield lambda: int(counters["stats"]["unique_graphs"])
    assert not counters["graph_break"], dict(counters["graph_break"])
    torch._dynamo.reset()


def losses(name: str, folder: Path, execution: Execution, settings: TrainSettings = SETTINGS, **changes: Any) -> list[float]:
    train(fresh_net(name, init="scaled", **changes), Walks(), settings, folder, execution=execution)
    return [metrics.loss for metrics in read_metrics(folder)]


READS = [
    # at most: the embedding and up to six blocks, the running one among them; and the output's read with masks, of 3 depths
    ("reference", None, "per sequence", 7 + 3),
    ("reference", 2, "fixed", 3),
    ("fused", 2, "fixed", 3),
    # between blocks of 1 to 6 sources (3 kinds in a window), merging, a mixture alone, and the output's read, of 3 depths
    pytest.param("two_phase", None, "uniform", 6 + 1 + 1 + 3, marks=pytest.mark.slow),
    ("two_phase", 2, "per sequence", 3 + 1 + 1 + 3),
]


@pytest.mark.parametrize(("backend", "window", "recurrence", "kinds"), READS)
def test_compiled_reads_change_nothing_and_are_compiled_once_a_kind(
    tmp_path: Path, graphs: Graphs, backend: str, window: int | None, recurrence: str, kinds: int
) -> None:
    settings = replace(SETTINGS, recurrence=RECURRENCES[recurrence])
    changes: dict[str, Any] = dict(depth_backend=backend, window_blocks=window)
    want = losses("arloop-full", tmp_path / "eager", EAGER, settings, **changes)
    assert graphs() == 0
    assert losses("arloop-full", tmp_path / "compiled", COMPILED, settings, **changes) == pytest.approx(want, rel=1e-5)
    assert BRANCHES + MAKING_SOURCES < graphs() <= BRANCHES + MAKING_SOURCES + kinds


def test_more_steps_compile_nothing_more(tmp_path: Path, graphs: Graphs) -> None:
    """Depths 1 to 3: the embedding alone, and with up to six blocks."""
    found = []
    settings = replace(SETTINGS, num_steps=10, recurrence=RECURRENCES["uniform"])
    want = losses("arloop-full", tmp_path / "eager", EAGER, settings)
    for attempt in ("first", "second"):
        assert losses("arloop-full", tmp_path / attempt, COMPILED, settings) == pytest.approx(want, rel=1e-5)
        found.append(graphs())
    assert found[1] == found[0] == BRANCHES + MAKING_SOURCES + 7


def test_reads_in_loops_without_gradients(tmp_path: Path, graphs: Graphs) -> None:
    """A kind for reads without gradients, and one for each number of sources that have none."""
    settings = replace(SETTINGS, recurrence=RECURRENCES["truncated"])
    want = losses("arloop-sw", tmp_path / "eager", EAGER, settings)
    assert losses("arloop-sw", tmp_path / "compiled", COMPILED, settings) == pytest.approx(want, rel=1e-5)
    assert graphs() <= 2 * (BRANCHES + MAKING_SOURCES) + 3 + 3 * 3


@pytest.mark.parametrize("name", ["prenorm", "sandwich", "span-parcae"])
def test_compiled_norms_change_nothing(tmp_path: Path, graphs: Graphs, name: str) -> None:
    want = losses(name, tmp_path / "eager", EAGER)
    assert losses(name, tmp_path / "compiled", COMPILED) == pytest.approx(want, rel=1e-5)
    assert BRANCHES < graphs() <= BRANCHES + 2


def test_reads_of_many_sources_are_left_as_they_are(tmp_path: Path, graphs: Graphs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of one sublayer: 1 to 13 sources, of which 4 kinds may be compiled."""
    want = losses("arloop-full", tmp_path / "eager", EAGER, block_size_sublayers=1)
    monkeypatch.setattr("loopwise.nets.depth_attention.MOST_COMPILED_SOURCES", 4)
    assert losses("arloop-full", tmp_path / "compiled", COMPILED, block_size_sublayers=1) == pytest.approx(want, rel=1e-5)
    assert graphs() <= BRANCHES + MAKING_SOURCES + 4


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["reference", "fused", "two_phase"])
def test_training_by_the_whole_compiler_changes_nothing(tmp_path: Path, backend: str) -> None:
    settings = replace(SETTINGS, num_steps=4, warmup_steps=1)
    changes: dict[str, Any] = dict(depth_backend=backend, num_loops=2)
    want = losses("arloop-sw", tmp_path / "eager", EAGER, settings, **changes)
    torch._dynamo.reset()
    assert losses("arloop-sw", tmp_path / "compiled", COMPILED, settings, **changes) == pytest.approx(want, rel=1e-5)
