"""The Free-Loop paper's models from scratch (Table 6, Appendix C.4) as a function, at the paper's size or at ``nano``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ..nets import Recurrence
from .pretraining import NANO_BUDGET, Budget, PretrainingTable, Row, Scale

_PAPER = Budget(tokens=1_500_000_000, batch_tokens=524_288, sequence_tokens=2048)
_OPTIMIZATION: Mapping[str, Any] = dict(
    optimizer="adamw", learning_rate=1e-3, betas=(0.9, 0.95), weight_decay=0.1, schedule="cosine", warmup_steps=200, clip_norm=1.0
)
_NANO_OPTIMIZATION: Mapping[str, Any] = {**_OPTIMIZATION, "learning_rate": 3e-3, "warmup_steps": 10}
_NANO: Mapping[str, Any] = dict(
    hidden_size=192,
    intermediate_size=512,
    num_hidden_layers=6,
    num_attention_heads=3,
    num_key_value_heads=1,
    head_dim=64,
)
_NANO_SPAN: Mapping[str, Any] = dict(loop_start=2, loop_stop=4)
_GUESSES: Mapping[str, str] = {
    "optimization": "the paper says that all models share it, not what it is: AdamW at 1e-3, cosine after 200 steps",
    "batch": "256 sequences of 2,048 tokens",
    "shape": "12 layers are the paper's; widths and vocabulary give its parameter count and cost ratios",
    "anchor": "beta 0.5 of the damped update; the paper gives none here",
}
_LATER: Mapping[str, str] = {
    "learning rate of the extra tokens": "the schedule anew at a third of the peak, as in continued training; the paper does not say"
}
_RANDOM: Mapping[str, str] = {"depth": "uniform from 1 to 3, as in the paper's continued pretraining; it says 'a random number of times'"}
_INJECTED: Mapping[str, str] = {"depth": "uniform from 2 to 4, whose mean gives the paper's training FLOPs; it gives no distribution"}


def table_6(scale: Scale = "paper") -> PretrainingTable:
    """Loops learned from scratch beside dense and recurrent controls.

    The row "Dense + best searched loop (no training)" trains nothing: `loopwise place` on the dense model's folder finds its loop.
    """
    nano = scale == "nano"
    base = NANO_BUDGET if nano else _PAPER
    size: Mapping[str, Any] = _NANO if nano else {}
    span: Mapping[str, Any] = {**_NANO, **_NANO_SPAN} if nano else {}
    deeper = {**size, "num_hidden_layers": 8} if nano else {}

    def row(name: str, label: str, network: str, changes: Mapping[str, Any], published: tuple[float, float, float], **more: Any) -> Row:
        ratios = dict(zip(("training_flops_ratio", "inference_flops_ratio", "loss_nats"), published, strict=True))
        return Row(
            name=name,
            label=label,
            network=network,
            changes=changes,
            budget=replace(base, tokens=round(base.tokens * more.pop("tokens", 1.0))),
            optimization={**(_NANO_OPTIMIZATION if nano else _OPTIMIZATION), **more.pop("optimization", {})},
            published={} if nano else ratios,
            guesses={**_GUESSES, **more.pop("guesses", {})},
            **more,
        )

    dense, looped = "free-loop-113m-dense", "free-loop-113m"
    third = {"learning_rate": (3e-3 if nano else 1e-3) / 3}
    later: dict[str, Any] = dict(begins_with="dense", tokens=0.2, optimization=third, guesses=_LATER)
    rows = (
        row("dense", "Dense, pretrained without loop", dense, size, (1.00, 1.00, 3.308)),
        row("dense-flop-matched", "Dense, FLOP-matched to looped pretraining", dense, size, (1.22, 1.00, 3.250), tokens=1.22),
        row("looped", "Looped during pretraining", looped, span, (1.22, 1.22, 3.289)),
        row("dense-16", "Dense, 16 layers", "free-loop-113m-dense-16", deeper, (1.22, 1.22, 3.268)),
        row("dense-longer", "Dense, 1.2 x tokens, no loop", dense, size, (1.20, 1.00, 3.278), **later),
        row("conversion", "Dense, 1.2 x tokens through the loop", looped, span, (1.24, 1.22, 3.273), **later),
        row(
            "random-depth",
            "Random depth, test depth K=2",
            "free-loop-113m-repeat",
            span,
            (1.22, 1.22, 3.318),
            recurrence=Recurrence(kind="uniform", least=1, most=3),
            test_loops=(2, 1, 3),
            guesses=_RANDOM,
        ),
        row(
            "input-injected",
            "Input-injected recurrence, test depth K=4",
            "free-loop-113m-injected",
            span,
            (1.47, 1.71, 3.389),
            recurrence=Recurrence(kind="uniform", least=2, most=4),
            test_loops=(4, 1, 2, 3),
            guesses=_INJECTED,
        ),
    )
    return PretrainingTable(
        name="free-loop-table-6",
        source="no-free-loop, Table 6 and C.4",
        scale=scale,
        text="FineWeb-Edu, 1.5 billion tokens",
        rows=rows,
        references={None: "dense"},
    )


TABLES: Mapping[str, Callable[[Scale], PretrainingTable]] = {"free-loop-table-6": table_6}
"""Every table of this file by its name."""
