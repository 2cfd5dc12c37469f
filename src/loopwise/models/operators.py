"""The two operators of a loop, and the state in the middle of a layer that the damped one needs for an MLP half."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..loops import Loop
from .families import ModelError


def apply_loop(loop: Loop, passes: int, run: Callable[[Tensor, int], Tensor], entry: Tensor, first: Tensor) -> Tensor:
    """The loop's output from its first run ``first`` = g(``entry``) and ``run(x, n)``, g in pass n (no-free-loop, A.1).

    Shapes: all [batch, tokens, d_model]. One pass is g itself, exactly.
    """
    if passes == 1:
        return first
    if loop.operator == "repeat":
        state = first
        for number in range(2, passes + 1):
            state = run(state, number)
        return state
    return anchored(loop, first, damped_iterate(passes, run, entry, first))


def damped_iterate(passes: int, run: Callable[[Tensor, int], Tensor], entry: Tensor, first: Tensor) -> Tensor:
    """F^K(``entry``) of the damped operator, with g(``entry``) given: the same for every beta."""
    state = _damped_step(entry, first, passes)
    for number in range(2, passes + 1):
        state = _damped_step(state, run(state, number), passes)
    return state


def anchored(loop: Loop, first: Tensor, state: Tensor) -> Tensor:
    """beta g(x) + (1 - beta) F^K(x), from g(x) and F^K(x)."""
    assert loop.beta is not None
    return loop.beta * first + (1.0 - loop.beta) * state


def _damped_step(state: Tensor, output: Tensor, passes: int) -> Tensor:
    """F(x) = x + (g(x) - x)/K; a span split over devices ends on another one than it began on."""
    state = state.to(output.device)
    return state + (output - state) / passes


_captured = threading.local()  # a plain one: torch.compile does not keep what a subclass is given


def run_capturing(loop: Loop, layer: nn.Module, hidden: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """The layer's output, and what its MLP half read.

    Raises:
        ModelError: the layer ran where its gradients are lost, under reentrant checkpointing.
    """
    _captured.wanted = True
    try:
        output = hidden_state(layer(hidden, *args, **kwargs))
        residual, with_gradient = _captured.residual, _captured.with_gradient
    finally:
        _captured.wanted, _captured.residual = False, None
    if residual is None or with_gradient != torch.is_grad_enabled():
        raise ModelError(
            f"loop {loop.span}: the MLP half's input is hidden, as by reentrant checkpointing (set use_reentrant=False) "
            "or by a wrapper around the layer"
        )
    return output, residual


class CaptureResidual:
    """Keeps what the MLP half of a layer reads, for the damped operator; an object, so that models still copy and pickle.

    Thread-local, and only where a call that runs the layer waits for it: neither a further run of the half, nor the
    backward pass that runs a checkpointed layer again, leaves a tensor behind.
    """

    def __call__(self, module: nn.Module, args: tuple[Tensor, ...]) -> None:
        if getattr(_captured, "wanted", False):
            _captured.residual, _captured.with_gradient = args[0], torch.is_grad_enabled()


def hidden_state(output: Any) -> Tensor:
    """The hidden state of a module that may return more beside it (router logits)."""
    hidden: Tensor = output[0] if isinstance(output, tuple) else output
    return hidden
