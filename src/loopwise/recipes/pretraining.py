"""What a table of pretraining runs is: its rows as values, each a whole run from scratch. No torch.

`arloop` and `free_loop` have the tables of the two papers as functions; `pretraining_runs` trains them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from ..nets import PREFIX, Architecture, Recurrence, named
from ..training import TrainingError

Scale = Literal["paper", "nano"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a run reads, and in which steps."""

    tokens: int
    batch_tokens: int
    """Of one step, over all processes."""
    sequence_tokens: int
    mixture: str = "single"
    """As `TrainingData.mixture`."""


NANO_BUDGET = Budget(tokens=500_000, batch_tokens=1024, sequence_tokens=256)
"""What a run at ``nano`` size reads: some minutes on one core. A guess; no paper trains at this size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of a table: a network and how it is trained.

    Raises:
        TrainingError: a name that cannot be a folder's, or a row that begins with itself.
        NetError: no such network, or changes that cannot be.
    """

    name: str
    """Unique in its table; the folder of its runs."""
    label: str
    """As the paper prints it."""
    network: str
    """A name of ``nets:``, without the prefix."""
    budget: Budget
    optimization: Mapping[str, Any]
    """Fields of `TrainSettings`."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the architecture."""
    recurrence: Recurrence | None = None
    """Loops of each step; None: the network's own."""
    begins_with: str | None = None
    """The row of the same table whose trained weights it begins with; it reads what follows on that row's data."""
    group: str | None = None
    """Rows of one group are compared with the group's ``reference``; None: the whole table is one group."""
    test_loops: tuple[int, ...] = ()
    """Depths that it is evaluated at, the first of which the table shows; empty: the network's own."""
    published: Mapping[str, float] = field(default_factory=dict)
    """What the paper prints: ``perplexity``, ``loss_nats``, ``training_flops_ratio``, ``inference_flops_ratio``, ``accuracy_percent``."""
    guesses: Mapping[str, str] = field(default_factory=dict)
    """What the paper does not give, by what it is about, and why it was chosen."""

    def __post_init__(self) -> None:
        if not self.name or not all(letter.isalnum() or letter in "-._" for letter in self.name):
            raise TrainingError(f"row name {self.name!r}: give letters, digits, '-', '.' and '_'")
        if self.begins_with == self.name:
            raise TrainingError(f"row {self.name} begins with itself; name another row")
        named(self.network, **self.changes)

    @property
    def model(self) -> str:
        """The network's name as commands take it."""
        return PREFIX + self.network

    @property
    def architecture(self) -> Architecture:
        """The network, with the vocabulary of its size."""
        return named(self.network, **self.changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainingTable:
    """Rows that are trained on the same data in the same order.

    Raises:
        TrainingError: two rows of one name, a reference or a beginning that is no row (or a later one).
    """

    name: str
    source: str
    """Which table of which paper this is."""
    scale: Scale
    text: str
    """What the paper trains on."""
    rows: tuple[Row, ...]
    references: Mapping[str | None, str] = field(default_factory=dict)
    """The row that each group's others are compared with."""

    def __post_init__(self) -> None:
        if self.scale not in get_args(Scale):
            raise TrainingError(f"scale is {self.scale!r}; use {' or '.join(get_args(Scale))}")
        names = [row.name for row in self.rows]
        if doubled := sorted({name for name in names if names.count(name) > 1}):
            raise TrainingError(f"table {self.name} has two rows {doubled[0]!r}; give each a name of its own")
        for group, reference in self.references.items():
            if reference not in names:
                raise TrainingError(f"table {self.name}: the reference {reference!r} of group {group!r} is no row")
        for at, row in enumerate(self.rows):
            if row.begins_with is not None and row.begins_with not in names[:at]:
                raise TrainingError(f"table {self.name}: row {row.name} begins with {row.begins_with!r}, which is no row before it")

    def row(self, name: str) -> Row:
        """A row by its name.

        Raises:
            TrainingError: there is none.
        """
        for row in self.rows:
            if row.name == name:
                return row
        raise TrainingError(f"table {self.name} has no row {name!r}; rows are {', '.join(row.name for row in self.rows)}")

    def select(self, names: Sequence[str]) -> tuple[Row, ...]:
        """The rows of these names, in the table's order, with those that they begin with; all where no name is given.

        Raises:
            TrainingError: a name that is no row's.
        """
        if not names:
            return self.rows
        chosen: set[str] = set()
        for name in names:
            one: str | None = name
            while one is not None:
                chosen.add(one)
                one = self.row(one).begins_with
        return tuple(row for row in self.rows if row.name in chosen)

    def first_tokens(self, row: Row) -> int:
        """Tokens that the row's weights have read before it begins."""
        if row.begins_with is None:
            return 0
        before = self.row(row.begins_with)
        return self.first_tokens(before) + before.budget.tokens

    def with_tokens(self, tokens: int) -> PretrainingTable:
        """The same table with another length: the shortest row reads so many, the others in proportion.

        Raises:
            TrainingError: fewer tokens than a step has.
        """
        shortest = min(row.budget.tokens for row in self.rows if row.begins_with is None)
        if tokens < max(row.budget.batch_tokens for row in self.rows):
            raise TrainingError(f"{tokens} tokens are less than one step; give at least {max(r.budget.batch_tokens for r in self.rows)}")
        rows = tuple(
            replace(row, budget=replace(row.budget, tokens=max(row.budget.batch_tokens, round(row.budget.tokens * tokens / shortest))))
            for row in self.rows
        )
        return replace(self, rows=rows)
