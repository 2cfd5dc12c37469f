"""A forward pass gone on with from any layer: hidden states of the plain model kept, loops run on top of them.

Hugging Face's own forward stays in charge: it embeds, makes masks and rotary embeddings, norms and heads. `Replay` lets
it run once over a batch and keeps what it handed each layer; then it calls the same layers with the same arguments, so
that the outcome is bit for bit that of the looped model's own forward on that batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn
from transformers import PreTrainedModel

from ..loops import Loop, SpanNode
from .families import ModelError, decoder_layers
from .operators import anchored, damped_iterate, hidden_state
from .surgery import LoopedLayers, SpanCall, Surgery, extent, insert, loops_of, remove

Run = Callable[[], Any]
"""Calls the model once, on one batch and without a cache."""
Arguments = tuple[tuple[tuple[Any, ...], dict[str, Any]], ...]
"""What the forward gives each layer beside its hidden state."""


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """One forward pass of the plain model."""

    output: Any
    states: tuple[Tensor, ...]
    """The hidden state before each layer and after the last, [batch, tokens, d_model] each."""


class States(Protocol):
    """The plain model's hidden states before each layer and after the last, the same tensor for a layer at every call."""

    def __getitem__(self, layer: int, /) -> Tensor: ...


class Iterates:
    """The last span's passes, kept for candidates that differ in beta alone, or in the passes of an undamped loop."""

    def __init__(self) -> None:
        self._key: Any = None
        self._states: list[Tensor] = []

    def of(self, key: Any) -> list[Tensor]:
        """The states kept under ``key``; any other key's are let go."""
        if key != self._key:
            self._key, self._states = key, []
        return self._states


class Replay:
    """The layers of a plain model, to be run one by one as its forward would.

    Raises:
        ModelError: the model has loops, is of an unknown family, or its forward does something between two layers.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        if loops_of(model):
            raise ModelError(f"{type(model).__name__} has loops; remove them before its layers are replayed")
        self.model = model
        self.layers: list[Any] = list(decoder_layers(model)._modules.values())
        self._surgeries: dict[tuple[Loop, ...], Surgery] = {}

    @property
    def num_layers(self) -> int:
        """Decoder layers."""
        return len(self.layers)

    def record(self, run: Run) -> Recorded:
        """Let the forward run, and keep the hidden state at every boundary between layers.

        Raises:
            ModelError: the forward changes the hidden state between layers, or hands it over by keyword.
        """
        states: list[Tensor] = []
        outputs: list[Tensor] = []

        def before(module: Any, args: tuple[Any, ...]) -> None:
            if not args or (outputs and args[0] is not outputs[-1]):
                raise ModelError(f"the forward of {type(self.model).__name__} does something between layers; they cannot be replayed")
            states.append(args[0])

        def after(module: Any, args: Any, output: Any) -> None:
            outputs.append(hidden_state(output))

        handles = [layer.register_forward_pre_hook(before) for layer in self.layers]
        handles += [layer.register_forward_hook(after) for layer in self.layers]
        try:
            output = run()
        finally:
            for handle in handles:
                handle.remove()
        if len(outputs) != self.num_layers:
            raise ModelError(f"the forward of {type(self.model).__name__} ran {len(outputs)} of {self.num_layers} layers; cannot replay it")
        return Recorded(output, (*states, outputs[-1]))

    def arguments(self, run: Run) -> Arguments:
        """What the forward gives its layers on this batch, without running them."""
        found: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

        def keep(hidden: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            found.append((args, kwargs))
            return hidden

        with _forwards(self.layers, keep):
            run()
        return tuple(found)

    def looped(self, loops: Sequence[Loop], states: States, arguments: Arguments, iterates: Iterates) -> Tensor:
        """The hidden state of the looped model where its last outermost loop ends (`last_stop`).

        Args:
            states: the plain model's, as `record` keeps them; only those from the first loop's start to the end of its span
                are read. What the plain model computed is never computed again: first passes are free.
            iterates: passed from candidate to candidate on one batch.

        Raises:
            LoopError, ModelError: loops that the model cannot have.
        """
        surgery = self._surgery(tuple(loops))
        with self._hooks(loops):
            layer = extent(surgery.units[0])[0]
            hidden = states[layer]
            for unit in surgery.units:
                first, last = extent(unit)
                hidden = self.onwards(hidden, layer, arguments, first)
                hidden = _ReplayedSpan(surgery, unit, self.layers, states, arguments, iterates).run(unit, hidden, None)
                layer = last
        return hidden

    def last_stop(self, loops: Sequence[Loop]) -> int:
        """The layer after the last outermost loop."""
        return extent(self._surgery(tuple(loops)).units[-1])[1]

    def onwards(self, hidden: Tensor, start: int, arguments: Arguments, stop: int | None = None) -> Tensor:
        """The plain layers from ``start`` on, to the last one or before ``stop``."""
        for index in range(start, self.num_layers if stop is None else stop):
            args, kwargs = arguments[index]
            hidden = hidden_state(self.layers[index](hidden, *args, **kwargs))
        return hidden

    def finish(self, hidden: Tensor, run: Run) -> Any:
        """The forward's output if the last layer had given ``hidden``: its final norm and its head."""

        def given(*args: Any, **kwargs: Any) -> Tensor:
            return hidden

        with _forwards(self.layers, given):
            return run()

    def _surgery(self, loops: tuple[Loop, ...]) -> Surgery:
        """How `insert` would put the loops in, after all its checks."""
        if loops not in self._surgeries:
            if len(self._surgeries) > 4096:
                self._surgeries.clear()
            insert(self.model, loops)
            found = decoder_layers(self.model)
            if not isinstance(found, LoopedLayers):
                raise ModelError("a candidate without a loop is the plain model; its states are recorded")
            self._surgeries[loops] = found.surgery
            remove(self.model)
        return self._surgeries[loops]

    @contextmanager
    def _hooks(self, loops: Sequence[Loop]) -> Iterator[None]:
        """With the hooks that damped MLP loops need; the list of layers is not walked meanwhile."""
        if not any(loop.part == "mlp" and loop.operator == "damped" for loop in loops):
            yield
            return
        insert(self.model, loops)
        try:
            yield
        finally:
            remove(self.model)


class _ReplayedSpan(SpanCall):
    """A span whose layers take what the plain model computed where they would compute the same."""

    def __init__(
        self,
        surgery: Surgery,
        unit: Any,
        modules: list[nn.Module],
        states: States,
        arguments: Arguments,
        iterates: Iterates,
    ) -> None:
        super().__init__(surgery, unit, modules, [])
        self.arguments = dict(enumerate(arguments))
        self.states = states
        self.iterates = iterates

    def run(self, node: Any, hidden: Tensor, pass_number: int | None) -> Tensor:
        if node is not self.unit or not isinstance(node, SpanNode) or hidden is not self.states[self.first]:
            return super().run(node, hidden, pass_number)
        loop, passes = node.loop, node.passes_in(None)
        inner = tuple(other for other in self.surgery.loops if other is not loop and loop.contains(other))
        states = self.iterates.of((loop.span, loop.operator, inner, passes if loop.operator == "damped" else None))
        if not states:
            states.append(self.run_body(node, hidden, 1))
        if loop.operator == "repeat":
            while len(states) < passes:
                states.append(self.run_body(node, states[-1], len(states) + 1))
            return states[passes - 1]
        if passes == 1:
            return states[0]
        if len(states) == 1:
            states.append(damped_iterate(passes, lambda state, number: self.run_body(node, state, number), hidden, states[0]))
        return anchored(loop, states[0], states[1])

    def call_layer(self, index: int, hidden: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        if hidden is self.states[index]:
            return self.states[index + 1]
        return super().call_layer(index, hidden, args, kwargs)


@contextmanager
def _forwards(layers: Sequence[Any], forward: Callable[..., Tensor]) -> Iterator[None]:
    """The layers answer with ``forward``; their own, or what a wrapper put in its place, is back afterwards."""
    own = [vars(layer).get("forward") for layer in layers]
    for layer in layers:
        layer.forward = forward
    try:
        yield
    finally:
        for layer, wrapped in zip(layers, own, strict=True):
            del layer.forward
            if wrapped is not None:
                layer.forward = wrapped
