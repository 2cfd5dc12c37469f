"""The whole line on the embedded default: where a loop could go, and whether it pays there."""

from __future__ import annotations

from pathlib import Path

from ..cost import read_shape
from ..data import balanced_mixture, named_documents, standard_documents
from ..models import EMBEDDED, load
from ..placement import PlacementScores, damped_grid, score_placements
from ..protocol import Verdict
from ..records import read_json, write_json
from ..tasks import worked_text
from .trial import Progress, TrialSettings, trial

BUDGETS_TOKENS = (32, 64, 128)
NUM_ITEMS = 48
BATCH_SIZE = 48
WIDTHS = (3, 5, 7)
NUM_CANDIDATES = 8
FIT_TOKENS = 1024
SCORE_TOKENS = 2048


def demo(out: str | Path, *, limit: int = NUM_ITEMS, progress: Progress | None = None) -> Verdict:
    """Score damped mid-depth spans of SmolLM2-135M-Instruct by calibrated perplexity, and put the best one on trial.

    A few minutes on two cores. ``out`` gets ``placement.json`` and the trial's files; a killed demo goes on where it was.

    Args:
        limit: items of the arithmetic ladder.

    Raises:
        TrialError: ``out`` holds another trial.
    """
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    placement = out / "placement.json"
    if not placement.exists():
        write_json(placement, place(progress).to_json())
    best = read_json(placement)["placements"][0]["loops"]
    settings = TrialSettings(limit=limit, batch_size=BATCH_SIZE, dtype="bf16", noise_floor=True)
    return trial(EMBEDDED, out=out, loops=best, tasks=("ladder",), budgets=BUDGETS_TOKENS, progress=progress, settings=settings)


def place(progress: Progress | None) -> PlacementScores:
    """The grid's scores: a filter that keeps harmful spans out of the trial."""
    if progress:
        progress("loading SmolLM2-135M-Instruct (its first use converts it)", 0.0, 1.0)
    model, tokenizer = load(EMBEDDED, dtype="bf16")
    if progress:
        progress("loading SmolLM2-135M-Instruct (its first use converts it)", 1.0, 1.0)
    candidates = damped_grid(read_shape(model.config.to_dict()), widths=WIDTHS, max_candidates=NUM_CANDIDATES)
    documents = [*named_documents("reasoning", worked_text(seed=0, num_documents=64)), *standard_documents()]
    mixture = balanced_mixture(documents, tokenizer, fit_tokens=FIT_TOKENS, score_tokens=SCORE_TOKENS)
    label = f"scoring {len(candidates)} spans by calibrated perplexity"

    def report(done: int, total: int) -> None:
        if progress:
            progress(label, done, total)

    return score_placements(model, candidates, mixture, progress=report)
