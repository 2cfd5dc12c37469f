"""What crossings mean, in sentences."""

from __future__ import annotations

from .crossings import CrossingPoint
from .exchange_rate import ExchangeRate, LineResult, Position, RatePoint, interval_of, last_known
from .paired_curves import IntervalOver
from .thresholds import Threshold, ThresholdName

_HOLDS: dict[ThresholdName, tuple[str, str]] = {
    "own first pass": (
        "the further passes lower the looped model's own loss",
        "the further passes do not lower the looped model's own loss",
    ),
    "twin": ("the looped model is ahead of its twin", "the looped model is not ahead of its twin"),
    "equal training compute": (
        "the looped model is ahead of a twin with the same training compute",
        "the looped model is not ahead of a twin with the same training compute",
    ),
}
"""What is said where a difference is above zero, and where it is not."""
_POSITIONS: dict[Position, str] = {
    "above": "its interval lies above",
    "below": "its interval lies below",
    "within": "its interval holds it, so that the two are not told apart",
}


def tokens_words(tokens: float) -> str:
    """A number of tokens with three digits: ``150M``, ``1.50B``."""
    value, step = float(tokens), 0
    while abs(value) >= 999.5 and step < 4:
        value, step = value / 1000, step + 1
    digits = 0 if abs(value) >= 99.95 or step == 0 else 1 if abs(value) >= 9.995 else 2
    return f"{value:.{digits}f}{('', 'k', 'M', 'B', 'T')[step]}"


def line_words(result: LineResult, rate: ExchangeRate) -> str:
    """Where r passes a line, or that it does not."""
    line, last = result.line, last_known(rate.points)
    number = f"{line.ratio:.3g}"
    what = f"{number} (as good as the twin)" if line.name == "twin" else f"{number} (training cost by {line.name})"
    said = crossing_words(result.crossing, f"r exceeds {what}", f"r does not exceed {what}", rate.interval_over)
    found = interval_of(last, rate.interval_over)
    told = "" if found is None else f"; {_POSITIONS[result.position]}"
    return f"{said} At {tokens_words(last.tokens)} tokens r is {rate_words(last, rate.interval_over)}, against {number}{told}."


def threshold_words(threshold: Threshold, over: IntervalOver | None) -> str:
    """From where on the looped model is ahead, or that it is not."""
    holds, not_yet = _HOLDS[threshold.name]
    if threshold.crossing is None:
        return "The twin was not trained long enough to be compared at equal training compute at any checkpoint."
    last = threshold.points[-1]
    said = crossing_words(threshold.crossing, holds, not_yet, over)
    difference = f"{last.difference_millinats:+.1f}".replace("-", "−")
    return f"{said} At {tokens_words(last.tokens)} tokens the difference is {difference} milli-nats."


def crossing_words(found: CrossingPoint, holds: str, not_yet: str, over: IntervalOver | None) -> str:
    """One sentence with the checkpoints between which it happens, and one for those that are beyond the twin's curve."""
    untold = ""
    if found.undecided_tokens:
        places = ", ".join(map(tokens_words, found.undecided_tokens))
        untold = f" At {places} tokens it cannot be told: the looped model is beyond the twin's curve."
    if found.last_tokens is None:
        return _sentence(f"whether {holds} cannot be told at any checkpoint: the looped model is beyond the twin's curve.")
    return _sentence(f"{_told(found, holds, not_yet, over, tokens_words(found.last_tokens))}.") + untold


def _told(found: CrossingPoint, holds: str, not_yet: str, over: IntervalOver | None, end: str) -> str:
    if found.before_tokens is None:
        return (
            f"{not_yet} at {end} tokens, though it did before"
            if found.status == "fell"
            else f"{not_yet} at any checkpoint up to {end} tokens"
        )
    before = tokens_words(found.before_tokens)
    if found.status == "always":
        return f"{holds} at every checkpoint, from the first at {before} tokens to {end}"
    if found.after_tokens is None:
        return f"{holds} from {before} tokens on at the latest, to {end}"
    about = "" if found.at_tokens is None else f", at about {tokens_words(found.at_tokens)}{_interval(found, over)}"
    seeds = "" if found.num_seeds == 1 else f"; so do {found.num_seeds_crossing} of {found.num_seeds} seeds on their own"
    return f"{holds} from between {tokens_words(found.after_tokens)} and {before} tokens on{about}, to the last at {end}{seeds}"


def rate_words(point: RatePoint, over: IntervalOver | None) -> str:
    """r at a checkpoint where it is known: ``1.180 [1.150, 1.210]``."""
    found = interval_of(point, over)
    if found is None:
        return f"{point.rate:.3f}"
    low, high = found
    return f"{point.rate:.3f} [{'…' if low is None else f'{low:.3f}'}, {'…' if high is None else f'{high:.3f}'}]"


def _interval(found: CrossingPoint, over: IntervalOver | None) -> str:
    if found.ci95_tokens is None or over is None:
        return ""
    low, high = found.ci95_tokens
    ends = ["before the first checkpoint" if low is None else tokens_words(low), "after the last" if high is None else tokens_words(high)]
    return f" (95 % interval over {over}: {ends[0]} to {ends[1]})"


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] if not text.startswith("r ") else text
