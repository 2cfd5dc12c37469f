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
    """Run the looped span ``len(loops)`` times; the first ones keep no gradients where ``grad_loops`` is fewer.

    What acts between two loops belongs to the later one, with its gradients.
    """
    stream.begin_loops()
    injected = None
    if injection is not None:
        assert isinstance(stream, StateStream)
        injected = stream.state
        stream.state = injection.initial_state(injected, positions)
    if arch.operator == "damped" and len(loops) > 1:
        assert isinstance(stream, StateStream) and arch.beta is not None
        _damped(arch.beta, stream, loops, run, grad_loops)
        return
    for loop, steps in enumerate(loops, start=1):
        with _gradients(loop, len(loops), grad_loops):
            if injection is not None and injected is not None:
                assert isinstance(stream, StateStream)
                stream.replace(injection(stream.state, injected), loop)
            run(stream, steps)
        with _gradients(loop + 1, len(loops), grad_loops):
            stream.end_loop(loop)


def _damped(beta: float, stream: StateStream, loops: Sequence[Sequence[Step]], run: Runner, grad_loops: int | None) -> None:
    """beta g(x) + (1 - beta) F^K(x), F(x) = x + (g(x) - x)/K; g(x) is F's first evaluation (no-free-loop, A.1).

    Sequences with depths of their own each have their own K, and with K = 1 they are g(x). One that has finished stays where it is:
    nothing is pushed for it, so its step is zero.
    """
    state, depths, first = stream.state, stream.depths, None
    # A tensor in both cases: on a GPU, division by a number rounds otherwise than division by a tensor of it.
    passes = state.new_full((1, 1, 1), len(loops)) if depths is None else depths.to(state.dtype)[:, None, None]
    for loop, steps in enumerate(loops, start=1):
        with _gradients(loop, len(loops), grad_loops):
            stream.state = state
            run(stream, steps)
            first = stream.state if first is None else first
            state = state + (stream.state - state) / passes
    assert first is not None
    output = beta * first + (1.0 - beta) * state
    stream.state = output if depths is None else torch.where(passes == 1, first, output)


def _gradients(loop: int, num_loops: int, grad_loops: int | None) -> AbstractContextManager[object]:
    cut = grad_loops is not None and loop <= num_loops - grad_loops
    return torch.no_grad() if cut else nullcontext()
