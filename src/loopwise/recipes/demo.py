"""The whole line on the embedded default: where a loop could go, and whether it pays there."""

from __future__ import annotations

from pathlib import Path

from ..models import EMBEDDED
from ..placement import DEPTH_RULE
from ..protocol import Verdict
from ..records import Study
from ..report import render_study
from .placement import PlaceSettings, Progress, SpaceSettings, TextSettings, place
from .trial import trial
from .trial_settings import TrialSettings

BUDGETS_TOKENS = (32, 64, 128)
NUM_ITEMS = 48
BATCH_SIZE = 48
PLACEMENT = PlaceSettings(
    text=TextSettings(fit_tokens=1024, score_tokens=2048),
    space=SpaceSettings(widths=(3, 5), passes=(2,), betas=(0.25,), centre=DEPTH_RULE, max_cost=1.25),
    race=False,
)
"""Ten spans, too much alike for a race to drop any early; the cap is the cost of the paper's unsearched loops (no-free-loop, Table 2)."""


def demo(out: str | Path, *, limit: int = NUM_ITEMS, progress: Progress | None = None) -> Verdict:
    """Score damped mid-depth spans of SmolLM2-135M-Instruct by calibrated perplexity, and put the best one on trial.

    A few minutes on two cores. ``out`` gets the study in ``placement`` and the trial's files; a killed demo goes on where it was.

    Args:
        limit: items of the arithmetic ladder.

    Raises:
        TrialError: ``out`` holds another trial.
    """
    out = Path(out)
    study = out / "placement"
    if not (out / "plan.json").exists():
        place_demo(study, progress)
    settings = TrialSettings(limit=limit, batch_size=BATCH_SIZE, noise_floor=True, placement=study)
    return trial(EMBEDDED, out=out, tasks=("ladder",), budgets=BUDGETS_TOKENS, progress=progress, settings=settings)


def place_demo(study: Path, progress: Progress | None = None) -> Study:
    """The study, with its report: a filter that keeps harmful spans out of the trial."""
    found = place(EMBEDDED, out=study, settings=PLACEMENT, progress=progress)
    render_study(study)
    return found
