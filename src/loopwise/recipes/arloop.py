"""ARLoop's tables as functions: every row a whole run, at the paper's size or at ``nano``.

The page shows results and shapes, hardly any training setting. What it does not show is taken from the code whose dimensions and
parameter counts the controlled models have (Parcae's, of the nanochat lineage), and is listed in each row's ``guesses``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ..nets import Recurrence
from .arloop_published import TABLE_1, TABLE_2, printed
from .pretraining import NANO_BUDGET, Budget, PretrainingTable, Row, Scale

LABELS: Mapping[str, str] = {
    "sandwich": "Sandwich-Norm",
    "deeploop": "DeepLoop",
    "parcae-decay": "Parcae w/o input injection",
    "parcae": "Parcae w. input injection",
    "prenorm": "PreNormLoop",
    "arloop-full": "ARLoop full",
    "arloop-sw": "ARLoop sw",
}
"""The seven designs as the paper names them."""

_CONTROLLED_TEXT = "FineWeb-Edu (ARLoop, Table 6)"
_CONTROLLED: Mapping[str, Any] = dict(
    optimizer="muon",
    learning_rate=8e-3,
    betas=(0.8, 0.95),
    epsilon=1e-10,
    weight_decay=0.2,
    momentum=0.95,
    schedule="trapezoid",
    cooldown_share=0.5,
    clip_norm=1.0,
)
_NANO: Mapping[str, Any] = dict(
    optimizer="adamw", learning_rate=3e-3, weight_decay=0.1, schedule="trapezoid", cooldown_share=0.5, warmup_steps=10, clip_norm=1.0
)
_NANO_GUESSES: Mapping[str, str] = {
    "everything": "no paper trains at this size; AdamW, because Muon's orthogonalisation would take as long as the rest of so small a step"
}
_CONTROLLED_GUESSES: Mapping[str, str] = {
    "optimization": "Parcae's code: Muon and AdamW at 8e-3, no warm-up, the last half falls to zero; its weight decay is cautious and "
    "falls to zero, ours is plain",
    "tokens": "Parcae's budgets: 11.2 billion at 140M, 29.6 billion at 370M",
    "batch": "Parcae's: 256 sequences of 2,048 tokens",
    "value residuals": "gated value embeddings, with which alone the parameter counts come out",
    "vocabulary": "32,768, by the parameter counts",
}
_CONTROLLED_BUDGETS: Mapping[str, Budget] = {
    "140m": Budget(tokens=11_200_000_000, batch_tokens=524_288, sequence_tokens=2048),
    "370m": Budget(tokens=29_600_000_000, batch_tokens=524_288, sequence_tokens=2048),
    "nano": NANO_BUDGET,
}
_LAYERS: Mapping[str, int] = {"140m": 6, "370m": 12, "nano": 4}

_LARGE: Mapping[str, Any] = dict(optimizer="adamw", schedule="cosine", warmup_steps=1000, final_factor=0.01)
_LARGE_GUESSES: Mapping[str, str] = {
    "learning rate": "Figure 7 is a picture; usual values for these sizes",
    "optimization": "AdamW with betas 0.9 and 0.95, weight decay 0.1 and clipping at 1; the page gives warm-up and cosine alone",
    "batch": "512 sequences of 4,096 tokens",
    "window": "3 blocks, as in the controlled study",
    "vocabulary": "100,352, with which the totals fit the names; value embeddings left out",
}


def table_1(scale: Scale = "paper") -> PretrainingTable:
    """Validation perplexity of seven designs, R = 1, 3, 5 at 140M and R = 1, 3 at 370M."""
    loops = {"140m": (1, 3, 5), "370m": (1, 3), "nano": (1, 3, 5)}
    rows = [_row(design, size, r, **printed(TABLE_1, size, design, r)) for size in _sizes(scale) for r in loops[size] for design in LABELS]
    return _table("arloop-table-1", "ARLoop, Table 1", scale, rows)


def table_2(scale: Scale = "paper") -> PretrainingTable:
    """Perplexity and zero-shot accuracy of PreNormLoop and ARLoop, R = 1 to 4 at 140M and R = 2, 3 at 370M.

    R = 1 is Table 8's, which splits the accuracies by task: it has no perplexity, and no ARLoop sw.
    """
    loops = {"140m": (1, 2, 3, 4), "370m": (2, 3), "nano": (1, 2, 3, 4)}
    rows = [
        _row(design, size, r, **printed(TABLE_2, size, design, r))
        for size in _sizes(scale)
        for r in loops[size]
        for design in ("prenorm", "arloop-full", "arloop-sw")
        if (design, r) != ("arloop-sw", 1)
    ]
    return _table("arloop-table-2", "ARLoop, Tables 2 and 8", scale, rows)


def table_7(scale: Scale = "paper") -> PretrainingTable:
    """Without value residuals, R = 3 at 140M."""
    published = {"prenorm": 18.19, "deeploop": 18.44, "parcae": 17.83, "arloop-full": 17.52, "arloop-sw": 18.20}
    rows = [
        _row(design, size, 3, changes={"value_embeddings": False}, perplexity=published.get(design))
        for size in _sizes(scale)[:1]
        for design in ("prenorm", "sandwich", "deeploop", "parcae", "arloop-full", "arloop-sw")
    ]
    return _table("arloop-table-7", "ARLoop, Table 7 (Sandwich-Norm: collapse)", scale, rows)


def table_9(scale: Scale = "paper") -> PretrainingTable:
    """A window at matched effective depth: L layers four times against four times as many layers once."""
    size = _sizes(scale)[0]
    layers = _LAYERS[size]
    published = {("arloop-full", 4): 16.07, ("arloop-sw", 4): 16.03, ("arloop-full", 1): 13.65, ("arloop-sw", 1): 16.78}
    rows = []
    for loops, depth in ((4, layers), (1, 4 * layers)):
        changes = {"num_hidden_layers": depth, "block_size_sublayers": layers}
        for design in ("arloop-full", "arloop-sw"):
            row = _row(design, size, loops, changes=changes, perplexity=published[design, loops])
            rows.append(
                replace(row, name=f"{design}-{size}-l{depth}-r{loops}", label=f"{row.label}, L={depth}, R={loops}", group=str(loops))
            )
    references = {row.group: row.name for row in rows if row.network.startswith("arloop-full")}
    return replace(_table("arloop-table-9", "ARLoop, Table 9", scale, rows), references=references)


def table_10(scale: Scale = "paper") -> PretrainingTable:
    """Residual block sizes of full history, R = 1 to 4; at ``nano`` a sixth of the layers' sublayers, a quarter and all become 1, 2, 4."""
    size = _sizes(scale)[0]
    blocks = {"140m": (2, 4, 6), "nano": (1, 2, 4)}[size]
    published = {1: (18.20, 18.25, 18.26), 2: (17.19, 17.18, 17.27), 3: (16.59, 16.48, 16.46), 4: (16.13, 16.02, 16.07)}
    rows = []
    for loops, values in published.items():
        for block, value in zip(blocks, values, strict=True):
            row = _row("arloop-full", size, loops, changes={"block_size_sublayers": block}, perplexity=value)
            rows.append(replace(row, name=f"{row.name}-s{block}", label=f"S={block}, R={loops}", group=str(loops)))
    references: dict[str | None, str] = {str(loops): f"arloop-full-{size}-r{loops}-s{blocks[-1]}" for loops in published}
    return replace(_table("arloop-table-10", "ARLoop, Table 10", scale, rows), references=references)


def table_11(scale: Scale = "paper") -> PretrainingTable:
    """Window sizes, R = 4."""
    size = _sizes(scale)[0]
    rows = []
    for window, value in ((2, 16.17), (3, 16.03), (4, 16.07), (5, 16.14)):
        row = _row("arloop-sw", size, 4, changes={"window_blocks": window}, perplexity=value)
        rows.append(replace(row, name=f"{row.name}-w{window}", label=f"W={window}", group=None))
    return replace(_table("arloop-table-11", "ARLoop, Table 11", scale, rows), references={None: f"arloop-sw-{size}-r4-w3"})


def table_15(scale: Scale = "paper") -> PretrainingTable:
    """Fixed depth against depths drawn from Poisson(4) clamped to 1 .. 4, by sequence and by batch; the drawn ones also at R = 1 to 8."""
    published = {"140m": (16.07, 16.69, 16.52), "370m": (12.01, 12.33, 12.36), "nano": (None, None, None)}
    draws: Mapping[str, Recurrence | None] = {
        "fixed": None,
        "poisson-sequence": Recurrence(kind="poisson", mean=4, least=1, most=4, per_sequence=True),
        "poisson-batch": Recurrence(kind="poisson", mean=4, least=1, most=4),
    }
    rows = []
    for size in _sizes(scale):
        for (name, recurrence), value in zip(draws.items(), published[size], strict=True):
            row = _row("arloop-full", size, 4, perplexity=value)
            depths = (4,) if recurrence is None else (4, 1, 2, 3, 5, 6, 7, 8)
            rows.append(
                replace(row, name=f"{row.name}-{name}", label=f"{row.label}, {name}", recurrence=recurrence, test_loops=depths, group=size)
            )
    references = {row.group: row.name for row in rows if row.recurrence is None}
    return replace(_table("arloop-table-15", "ARLoop, Table 15 and Figure 10", scale, rows), references=references)


def large(scale: Scale = "paper") -> PretrainingTable:
    """PreNorm-0.6B, ARLoop-0.6B and ARLoop-1.2B, three loops each (Tables 3, 8, 12 to 14)."""
    rows = []
    for label, design, size, tokens, rate in (
        ("PreNorm-0.6B", "prenorm", "0.6b", 180_000_000_000, 6e-4),
        ("ARLoop-0.6B", "arloop-sw", "0.6b", 180_000_000_000, 6e-4),
        ("ARLoop-1.2B", "arloop-sw", "1.2b", 500_000_000_000, 4e-4),
    ):
        paper = Budget(tokens=tokens, batch_tokens=2_097_152, sequence_tokens=4096, mixture=f"arloop-{size}")
        nano = scale == "nano"
        budget = replace(NANO_BUDGET, tokens=round(NANO_BUDGET.tokens * tokens / 180e9)) if nano else paper
        optimization = {**_LARGE, "learning_rate": rate} | (dict(learning_rate=3e-3, warmup_steps=10) if nano else {})
        wider = {"hidden_size": 256, "intermediate_size": 1024, "num_attention_heads": 4, "num_key_value_heads": 4}
        rows.append(
            Row(
                name=label.lower(),
                label=label,
                network=f"{design}-{'nano' if nano else size}",
                changes=(wider if nano and size == "1.2b" else {}) | {"num_loops": 3},
                budget=budget,
                optimization=optimization,
                guesses=_LARGE_GUESSES,
            )
        )
    text = "three stages of FineWeb-Edu, StackExchange, math and code (ARLoop, Table 14)"
    references: dict[str | None, str] = {None: "prenorm-0.6b"}
    return PretrainingTable(
        name="arloop-large",
        source="ARLoop, Tables 3, 8 and 12 to 14",
        scale=scale,
        text=text,
        rows=tuple(rows),
        references=references,
    )


def designs(scale: Scale = "nano") -> PretrainingTable:
    """Seven designs at R = 3, two of them without a loop, and what the same FLOPs buy without: more layers, or more tokens."""
    size = _sizes(scale)[0]
    layers, base = _LAYERS[size], _CONTROLLED_BUDGETS[size]
    rows = [replace(_row(design, size, 3), group=None) for design in LABELS]
    rows += [replace(_row(design, size, 1), group=None) for design in ("prenorm", "arloop-sw")]
    deep = _row("prenorm", size, 1, changes={"num_hidden_layers": 3 * layers})
    rows.append(replace(deep, name=f"dense-{size}-l{3 * layers}", label=f"dense, {3 * layers} layers", group=None))
    once, thrice = (_flops(_row("prenorm", size, loops)) for loops in (1, 3))
    longer = replace(_row("prenorm", size, 1), budget=replace(base, tokens=round(base.tokens * thrice / once)))
    rows.append(replace(longer, name=f"dense-{size}-longer", label=f"dense, {thrice / once:.2f} x the tokens", group=None))
    found = _table("designs", "no table: the designs of ARLoop's Tables 1 and 2 beside what Free-Loop's section 5 asks for", scale, rows)
    return replace(found, references={None: f"prenorm-{size}-r3"})


TABLES: Mapping[str, Callable[[Scale], PretrainingTable]] = {
    "arloop-table-1": table_1,
    "arloop-table-2": table_2,
    "arloop-table-7": table_7,
    "arloop-table-9": table_9,
    "arloop-table-10": table_10,
    "arloop-table-11": table_11,
    "arloop-table-15": table_15,
    "arloop-large": large,
    "designs": designs,
}
"""Every table of this file by its name."""


def _sizes(scale: Scale) -> tuple[str, ...]:
    return ("140m", "370m") if scale == "paper" else ("nano",)


def _row(
    design: str,
    size: str,
    loops: int,
    *,
    changes: Mapping[str, Any] | None = None,
    perplexity: float | None = None,
    accuracy_percent: float | None = None,
) -> Row:
    published = {"perplexity": perplexity, "accuracy_percent": accuracy_percent}
    return Row(
        name=f"{design}-{size}-r{loops}",
        label=f"{LABELS[design]}, R={loops}",
        network=f"{design}-{size}",
        changes={"num_loops": loops, **(changes or {})},
        budget=_CONTROLLED_BUDGETS[size],
        optimization=_NANO if size == "nano" else _CONTROLLED,
        group=f"{size}-r{loops}",
        published={} if size == "nano" else {name: value for name, value in published.items() if value is not None},
        guesses=_NANO_GUESSES if size == "nano" else _CONTROLLED_GUESSES,
    )


def _table(name: str, source: str, scale: Scale, rows: list[Row]) -> PretrainingTable:
    """Rows of one size and depth are compared with PreNormLoop's."""
    references = {row.group: row.name for row in rows if row.network.startswith("prenorm")}
    return PretrainingTable(name=name, source=source, scale=scale, text=_CONTROLLED_TEXT, rows=tuple(rows), references=references)


def _flops(row: Row) -> float:
    from ..cost import cost_of, read_shape

    return cost_of(read_shape(row.architecture.as_config()), ()).flops_per_token
