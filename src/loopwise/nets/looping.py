"""What loops, and how: the looped span as an operator on the stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from .configuration import Architecture
from .designs.prenorm import StateStream
from .injection import InputInjection
from .residual import Stream
from .schedule import Step

Runner = Callable[[Stream, Sequence[Step]], None]
"""Runs some layers on a stream."""


def run_loops(
    arch: Architecture,
    stream: Stream,
    loops: Sequence[Sequence[Step]],
    run: Runner,
    *,
    injection: InputInjection | None,
    positions: Tensor,
    grad_loops: int | None,
) -> None:
    """Run the looped span ``len(loops)`` times; the first ones keep no gradients where ``grad_loops`` is fewer."""
    injected = None
    if injection is not None:
        assert isinstance(stream, StateStream)
        injected = stream.state
        stream.state = injection.initial_state(injected, positions)
    if arch.operator == "damped" and len(loops) > 1:
        assert isinstance(stream, StateStream) and arch.beta is not None
        _damped(arch.beta, stream, loops, run)
        return
    for loop, steps in enumerate(loops, start=1):
        with _gradients(loop, len(loops), grad_loops):
            if injection is not None and injected is not None:
                assert isinstance(stream, StateStream)
                stream.replace(injection(stream.state, injected), loop)
            run(stream, steps)
            stream.end_loop(loop)


def _damped(beta: float, stream: StateStream, loops: Sequence[Sequence[Step]], run: Runner) -> None:
    """beta g(x) + (1 - beta) F^K(x), F(x) = x + (g(x) - x)/K; g(x) is F's first evaluation (no-free-loop, A.1)."""
    state, first = stream.state, None
    for steps in loops:
        stream.state = state
        run(stream, steps)
        first = stream.state if first is None else first
        state = state + (stream.state - state) / len(loops)
    assert first is not None
    stream.state = beta * first + (1.0 - beta) * state


def _gradients(loop: int, num_loops: int, grad_loops: int | None) -> AbstractContextManager[object]:
    cut = grad_loops is not None and loop <= num_loops - grad_loops
    return torch.no_grad() if cut else nullcontext()
