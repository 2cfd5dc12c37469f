"""What a reader must know before quoting a loss verdict's numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .. import stats
from .decide import final_word
from .loss_arms import LossArm
from .loss_values import LEAST_DOCUMENTS, LossTest
from .values import VerdictWord
from .words import interval, listing

_SAME_IN_ALL = ("dtype", "device", "versions")


def loss_notes(
    arms: Sequence[LossArm],
    first: LossTest,
    second: LossTest | None,
    beside: LossTest | None,
    *,
    word: VerdictWord,
    training_free: bool,
    alpha: float,
) -> tuple[str, ...]:
    """One sentence each, the weightiest first."""
    return (
        *_training(first, beside, word),
        *_seeds(first, training_free),
        *_choice(second),
        *_documents(first, alpha),
        *_headers(arms),
    )


def _training(first: LossTest, beside: LossTest | None, word: VerdictWord) -> Iterator[str]:
    if beside is not None and (other := final_word(first.result, beside.result)) != word:
        yield f"The verdict flips: with training FLOPs held equal it would be '{other}', not '{word}'."


def _seeds(first: LossTest, training_free: bool) -> Iterator[str]:
    comparison = first.comparison
    seeds = len(comparison.seed_deltas)
    if training_free:
        yield "The loop is training-free (‡): both arms are the same weights, so training luck plays no part in their difference."
    elif comparison.resampling == "items and seeds":
        yield (
            "Intervals resample documents and training seeds: they include variation between training runs, as far as this few seeds show "
            f"it. With documents alone it is {interval(comparison.ci95_items)} milli-nats at equal parameters."
        )
    elif seeds == 1:
        yield (
            "One training run of each model: two runs of one recipe differ by some milli-nats of loss as well, and the intervals, which "
            "draw documents alone, do not know by how many."
        )
    else:
        yield "Intervals are conditional on the training seeds: they ignore variation between training runs; see the per-seed differences."
    if seeds < 3 and not training_free:
        yield "Fewer than three seeds (△): another training run could come out differently."


def _choice(second: LossTest | None) -> Iterator[str]:
    if second is not None and second.num_eligible > 1:
        yield (
            f"The comparator at equal FLOPs was chosen among {second.num_eligible} models on the test documents, which favours the "
            "unlooped side: its interval covers the truth less often than it says, always against the loop."
        )


def _documents(first: LossTest, alpha: float) -> Iterator[str]:
    comparison = first.comparison
    if stats.sign_floor(comparison.num_differing) >= alpha:
        yield f"The arms differ on {comparison.num_differing} documents only: no test could call that significant."
    elif comparison.num_documents < LEAST_DOCUMENTS:
        few = f"{comparison.num_documents} documents are few: the intervals are too narrow"
        yield f"{few}, and nothing is called equivalent below {LEAST_DOCUMENTS}."


def _headers(arms: Sequence[LossArm]) -> Iterator[str]:
    headers = [header for arm in arms for header in arm.headers]
    differ = [name for name in _SAME_IN_ALL if any(header.get(name) != headers[0].get(name) for header in headers)]
    if differ:
        yield f"The models ran with different {listing(differ)}: part of the differences may be theirs."
    if unknown := headers[0].get("num_unknown"):
        yield f"{unknown} tokens are the tokenizer's unknown one: what they stood for was not predicted, and bits per byte are too low."
