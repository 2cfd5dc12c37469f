"""Looped forward passes written out by hand, straight from the paper's formulas. Knows nothing of loopwise.models.

The plain model is asked what it hands each of its layers (mask, rotary embedding, layer type's own arguments); the layers
and their halves are then called one by one, in the order that each formula in `FORMULAS` says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from loopwise.loops import Loop

Run = Callable[[Tensor, int], Tensor]
"""g(x) in pass n."""


class Halves:
    """The layers of a plain model on one input, and both halves of each, family by family."""

    def __init__(self, family: str, model: Any, ids: Tensor, mask: Tensor) -> None:
        self.family = family
        decoder = model.transformer if family == "gpt2" else model.model
        self.layers = list(decoder.h if family == "gpt2" else decoder.layers)
        self.norm = decoder.ln_f if family == "gpt2" else decoder.norm
        self.model = model
        self.inputs: dict[str, Any] = dict(
            input_ids=ids, attention_mask=mask, position_ids=(mask.cumsum(-1) - 1).clamp(min=0), use_cache=False
        )
        self.arguments: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self.entry: Tensor

        def keep(layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if not self.arguments:
                self.entry = args[0]
            self.arguments.append((args[1:], kwargs))

        handles = [layer.register_forward_pre_hook(keep, with_kwargs=True) for layer in self.layers]
        model(**self.inputs)
        for handle in handles:
            handle.remove()

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits when ``hidden`` arrives at the model's final norm."""
        handle = self.norm.register_forward_pre_hook(lambda module, args: (hidden,))
        result: Tensor = self.model(**self.inputs).logits
        handle.remove()
        return result

    def layer(self, index: int, x: Tensor) -> Tensor:
        """A whole layer."""
        args, kwargs = self.arguments[index]
        output: Tensor = self.layers[index](x, *args, **kwargs)
        return output

    def span(self, start: int, stop: int, x: Tensor) -> Tensor:
        """Layers ``start .. stop-1``, each once."""
        for index in range(start, stop):
            x = self.layer(index, x)
        return x

    def attention(self, index: int, x: Tensor) -> Tensor:
        """The token mixer with its norms and its residual add."""
        layer, (args, kwargs) = self.layers[index], self.arguments[index]
        if self.family == "gpt2":
            return layer.attn(layer.ln_1(x), attention_mask=args[1])[0] + x
        if self.family in ("qwen3_5", "qwen3_5_moe") and layer.block_type == "linear_attention":
            return x + layer.linear_attn(hidden_states=layer.input_layernorm(x), attention_mask=kwargs["attention_mask"])
        if self.family in ("olmo2", "olmo3"):
            return x + layer.post_attention_layernorm(layer.self_attn(hidden_states=x, **kwargs)[0])
        mixed = layer.self_attn(hidden_states=layer.input_layernorm(x), **kwargs)[0]
        return x + (layer.post_attention_layernorm(mixed) if self.family in ("gemma2", "gemma3") else mixed)

    def mlp(self, index: int, x: Tensor) -> Tensor:
        """The MLP half: its norms, its modules and its residual add."""
        layer = self.layers[index]
        if self.family == "gpt2":
            return x + layer.mlp(layer.ln_2(x))
        if self.family in ("gemma2", "gemma3"):
            return x + layer.post_feedforward_layernorm(layer.mlp(layer.pre_feedforward_layernorm(x)))
        if self.family in ("olmo2", "olmo3"):
            return x + layer.post_feedforward_layernorm(layer.mlp(x))
        return x + layer.mlp(layer.post_attention_layernorm(x))


def repeat(g: Run, passes: int, x: Tensor) -> Tensor:
    """x <- g(x), ``passes`` times."""
    for number in range(1, passes + 1):
        x = g(x, number)
    return x


def damped(g: Run, passes: int, beta: float, x: Tensor) -> Tensor:
    """g^(K)(x) = beta g(x) + (1 - beta) F^K(x) with F(x) = x + (g(x) - x) / K; the n-th evaluation of F is pass n."""
    state = x
    for number in range(1, passes + 1):
        state = state + (g(state, number) - state) / passes
    return beta * g(x, 1) + (1 - beta) * state


def _one_span(m: Halves, x: Tensor) -> Tensor:
    x = m.span(0, 1, x)
    x = damped(lambda y, n: m.span(1, 4, y), 3, 0.25, x)
    return m.span(4, 6, x)


def _two_spans(m: Halves, x: Tensor) -> Tensor:
    x = damped(lambda y, n: m.span(0, 2, y), 2, 0.0, x)
    x = m.span(2, 4, x)
    return damped(lambda y, n: m.span(4, 6, y), 4, 0.7, x)


def _anchor_alone(m: Halves, x: Tensor) -> Tensor:
    return m.span(0, 6, x)


def _mlp_repeat(m: Halves, x: Tensor) -> Tensor:
    x = m.span(0, 1, x)
    x = repeat(lambda y, n: m.mlp(1, y), 3, m.attention(1, x))
    x = repeat(lambda y, n: m.mlp(2, y), 3, m.attention(2, x))
    return m.span(3, 6, x)


def _mlp_damped(m: Halves, x: Tensor) -> Tensor:
    x = damped(lambda y, n: m.mlp(0, y), 2, 0.3, m.attention(0, x))
    x = m.span(1, 5, x)
    return damped(lambda y, n: m.mlp(5, y), 3, 0.0, m.attention(5, x))


def _mlp_of_several_layers(m: Halves, x: Tensor) -> Tensor:
    x = m.span(0, 2, x)
    for layer in (2, 3, 4):
        x = damped(lambda y, n, layer=layer: m.mlp(layer, y), 3, 0.5, m.attention(layer, x))  # type: ignore[misc]
    return m.span(5, 6, x)


def _mlp_in_every_pass(m: Halves, x: Tensor) -> Tensor:
    def g(y: Tensor, number: int) -> Tensor:
        y = m.layer(1, y)
        y = damped(lambda z, n: m.mlp(2, z), 3, 0.5, m.attention(2, y))
        return m.layer(3, y)

    return m.span(4, 6, damped(g, 2, 0.25, m.span(0, 1, x)))


def _mlp_in_pass(the_pass: int) -> Callable[[Halves, Tensor], Tensor]:
    def formula(m: Halves, x: Tensor) -> Tensor:
        def g(y: Tensor, number: int) -> Tensor:
            y = m.layer(1, y)
            y = damped(lambda z, n: m.mlp(2, z), 3, 0.5, m.attention(2, y)) if number == the_pass else m.layer(2, y)
            return m.layer(3, y)

        return m.span(4, 6, damped(g, 2, 0.25, m.span(0, 1, x)))

    return formula


def _searched_span(m: Halves, x: Tensor) -> Tensor:
    """The paper's searched span in small: a window at the start run twice, one MLP loop (K = 3) at its first layer, in one pass."""
    x = repeat(lambda y, n: m.mlp(0, y), 3, m.attention(0, x))
    x = m.span(1, 4, x)
    x = m.span(0, 4, x)
    return m.span(4, 6, x)


def _repeat_around_damped(m: Halves, x: Tensor) -> Tensor:
    def g(y: Tensor, number: int) -> Tensor:
        y = m.layer(0, y)
        y = damped(lambda z, n: m.span(1, 3, z), 3, 0.6, y)
        return m.span(3, 5, y)

    return m.layer(5, repeat(g, 2, x))


def _damped_in_pass_two(m: Halves, x: Tensor) -> Tensor:
    def g(y: Tensor, number: int) -> Tensor:
        y = m.layer(0, y)
        y = damped(lambda z, n: m.span(1, 3, z), 3, 0.6, y) if number == 2 else m.span(1, 3, y)
        return m.span(3, 5, y)

    return m.layer(5, damped(g, 3, 0.1, x))


def _three_deep(m: Halves, x: Tensor) -> Tensor:
    def inner(y: Tensor, number: int) -> Tensor:
        y = m.layer(1, y)
        for layer in (2, 3):
            y = m.attention(layer, y)
            y = damped(lambda z, n, layer=layer: m.mlp(layer, z), 2, 0.2, y) if number == 1 else m.mlp(layer, y)  # type: ignore[misc]
        return m.layer(4, y)

    def outer(y: Tensor, number: int) -> Tensor:
        y = m.layer(0, y)
        y = repeat(inner, 2, y) if number == 2 else inner(y, 1)
        return m.layer(5, y)

    return damped(outer, 2, 0.5, x)


FORMULAS: dict[str, Callable[[Halves, Tensor], Tensor]] = {
    "1:4 x3 damped beta=0.25": _one_span,
    "0:2 x2 damped beta=0 + 4:6 x4 damped beta=0.7": _two_spans,
    "1:5 x2 damped beta=1": _anchor_alone,
    "1:3.mlp x3": _mlp_repeat,
    "0.mlp x2 damped beta=0.3 + 5.mlp x3 damped beta=0": _mlp_damped,
    "2:5.mlp x3 damped beta=0.5": _mlp_of_several_layers,
    "1:4 x2 damped beta=0.25 + 2.mlp x3 damped beta=0.5": _mlp_in_every_pass,
    "1:4 x2 damped beta=0.25 + 2.mlp x3 damped beta=0.5 in pass 1": _mlp_in_pass(1),
    "1:4 x2 damped beta=0.25 + 2.mlp x3 damped beta=0.5 in pass 2": _mlp_in_pass(2),
    "0:4 x2 + 0.mlp x3 in pass 1": _searched_span,
    "0:5 x2 + 1:3 x3 damped beta=0.6": _repeat_around_damped,
    "0:5 x3 damped beta=0.1 + 1:3 x3 damped beta=0.6 in pass 2": _damped_in_pass_two,
    "0:6 x2 damped beta=0.5 + 1:5 x2 in pass 2 + 2:4.mlp x2 damped beta=0.2 in pass 1": _three_deep,
}
"""Loops in the notation, and the hidden state that they give, from the model's embeddings to its final norm."""


@torch.no_grad()
def reference_logits(loops: str, halves: Halves) -> Tensor:
    """Logits of the formula for ``loops``."""
    return halves.logits(FORMULAS[loops](halves, halves.entry))


@torch.no_grad()
def recursive_logits(loops: Sequence[Loop], halves: Halves) -> Tensor:
    """Logits of any loops: the formulas above, applied from the widest loop inwards."""

    def apply(loop: Loop, g: Run, x: Tensor) -> Tensor:
        return repeat(g, loop.passes, x) if loop.beta is None else damped(g, loop.passes, loop.beta, x)

    def run(start: int, stop: int, inside: Loop | None, number: int, x: Tensor) -> Tensor:
        layer = start
        while layer < stop:
            here = [loop for loop in loops if loop.start <= layer < loop.stop and (inside is None or inside.contains(loop))]
            spans = [loop for loop in here if loop.part == "layer" and loop is not inside]
            if spans:
                widest = max(spans, key=lambda loop: loop.stop - loop.start)

                def g(y: Tensor, n: int, widest: Loop = widest) -> Tensor:
                    return run(widest.start, widest.stop, widest, n, y)

                x = apply(widest, g, x) if widest.in_pass in (None, number) else g(x, 1)
                layer = widest.stop
                continue
            x = halves.attention(layer, x)
            mlp = [loop for loop in here if loop.part == "mlp" and loop.in_pass in (None, number)]

            def half(y: Tensor, n: int, layer: int = layer) -> Tensor:
                return halves.mlp(layer, y)

            x = apply(mlp[0], half, x) if mlp else half(x, 1)
            layer += 1
        return x

    return halves.logits(run(0, len(halves.layers), None, 0, halves.entry))
