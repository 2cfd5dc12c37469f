"""A set's table: what each member was charged, and whether what must be shared was shared. No torch."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..records import read_json, write_json
from ..training import TrainingError, read_metrics
from .learning_files import read_result, read_set
from .learning_members import TWIN

SUMMARY_FILE, REPORT_FILE = "summary.json", "report.md"
HEADER_FILE = "run.json"
GRPO_FOLDER = "grpo"
"""Of a run: that of its reinforcement learning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSummary:
    """One member. Numbers are means over the seeds that are done; None is not known, never zero."""

    name: str
    role: str
    loops: str
    why: str
    begins_with: str | None
    seeds: tuple[int, ...]
    """Of the runs that are done."""
    failed: Mapping[int, str]
    """Why a seed's run failed."""
    num_steps: float | None = None
    tokens: float | None = None
    """Read, padding left out."""
    answer_tokens: float | None = None
    """Of them, those that were trained on; None of plain text, of which all are."""
    training_flops: float | None = None
    """Of this training alone, matrix products."""
    flops_ratio: float | None = None
    """Over the twin's, seed by seed."""
    seconds: float | None = None
    """Of training steps."""
    step_time_ratio: float | None = None
    """Time of a step over the twin's, seed by seed."""
    layer_pass_ratio: float | None = None
    """Layer passes as trained over the plain model's."""
    loss_nats: float | None = None
    """What was minimised, per target, over the last tenth of the steps."""
    held_out_nats: float | None = None
    rewards: tuple[float, float] | None = None
    """Mean rewards over the first and the last tenth of the steps of reinforcement learning; None of recipes without."""
    answer_lengths: tuple[float, float] | None = None
    """Mean tokens of an answer there."""
    alarms: tuple[str, ...] = ()
    """What should have been shared with the other members of a seed and was not."""


def summarise_set(out: str | Path) -> tuple[MemberSummary, ...]:
    """Summarise whatever runs of a set are over; writes ``summary.json`` and ``report.md`` beside them.

    Raises:
        TrainingError: no set, or none of its runs is over.
    """
    out = Path(out)
    values = read_set(out)
    found = {name: _results(out / name, values["seeds"]) for name in values["members"]}
    if not any(found.values()):
        raise TrainingError(f"{out}: no run of the set is over; train it first")
    done = {name: {seed: one for seed, one in runs.items() if "failed" not in one} for name, runs in found.items()}
    alarms = shared_alarms(out, {name: tuple(runs) for name, runs in done.items()}, values)
    rows = []
    for name, member in values["members"].items():
        failed = {seed: str(one["failed"]) for seed, one in found[name].items() if "failed" in one}
        rows.append(_summary(name, member, done[name], failed, done.get(TWIN, {}), alarms[name]))
    write_json(out / SUMMARY_FILE, {"recipe": values["recipe"], "scale": values["scale"], "members": [asdict(row) for row in rows]})
    (out / REPORT_FILE).write_text(report(values, rows), encoding="utf-8")
    return tuple(rows)


def shared_alarms(out: Path, done: Mapping[str, Sequence[int]], values: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Where members of a seed read other batches than the one that was trained longest, or began with other weights than the first.

    A shorter run must have read a beginning of what a longer one read.

    Args:
        done: the seeds of each member whose runs are done.
        values: of ``set.json``.
    """
    found: dict[str, list[str]] = {name: [] for name in values["members"]}
    for seed in values["seeds"]:
        present = [name for name in values["members"] if seed in done[name]]
        hashes = {name: [step.batch_hash for step in read_metrics(out / name / f"seed-{seed}")] for name in present}
        asked = {name: [step.batch_hash for step in read_metrics(out / name / f"seed-{seed}" / GRPO_FOLDER)] for name in present}
        longest = max(present, key=lambda name: len(hashes[name]), default=None)
        first: dict[str | None, tuple[str, Any]] = {}
        for name in present:
            assert longest is not None
            pairs = zip(hashes[name], hashes[longest], strict=False)
            at = next((step for step, (ours, theirs) in enumerate(pairs, 1) if ours != theirs), None)
            if at is not None:
                found[name].append(f"other batches than {longest} from step {at} on (seed {seed})")
            if asked[name] != asked[longest]:
                found[name].append(f"other problems of reinforcement learning than {longest} (seed {seed})")
            begins = values["members"][name]["begins_with"]
            weights = read_json(out / name / f"seed-{seed}" / HEADER_FILE)["model"]["first_weights"]
            other, expected = first.setdefault(begins, (name, weights))
            if weights != expected:
                found[name].append(f"other first weights than {other} (seed {seed})")
    return {name: tuple(alarms) for name, alarms in found.items()}


def _results(folder: Path, seeds: Sequence[int]) -> dict[int, dict[str, Any]]:
    found = {seed: read_result(folder / f"seed-{seed}") for seed in seeds}
    return {seed: one for seed, one in found.items() if one is not None}


def _summary(
    name: str,
    member: Mapping[str, Any],
    done: Mapping[int, dict[str, Any]],
    failed: Mapping[int, str],
    twins: Mapping[int, dict[str, Any]],
    alarms: tuple[str, ...],
) -> MemberSummary:
    def mean(field: str) -> float | None:
        values = [one.get(field) for one in done.values()]
        return None if not values or None in values else statistics.fmean(values)  # type: ignore[arg-type]

    def ratio(field: str) -> float | None:
        pairs = [(one.get(field), twins[seed].get(field)) for seed, one in done.items() if seed in twins]
        known = [ours / theirs for ours, theirs in pairs if ours and theirs]
        return statistics.fmean(known) if known and len(known) == len(pairs) else None

    def ends(field: str) -> tuple[float, float] | None:
        pairs = [tuple(one["evaluation"].get(f"grpo_{field}_{where}") for where in ("first", "last")) for one in done.values()]
        known = [(first, last) for first, last in pairs if first is not None and last is not None]
        return (statistics.fmean(a for a, _ in known), statistics.fmean(b for _, b in known)) if known else None

    held_out = [one["evaluation"].get("held_out_loss") for one in done.values()]
    return MemberSummary(
        name=name,
        role=member["role"],
        loops=member["loops"],
        why=member["why"],
        begins_with=member["begins_with"],
        seeds=tuple(done),
        failed=dict(failed),
        num_steps=mean("num_steps"),
        tokens=mean("tokens"),
        answer_tokens=mean("answer_tokens"),
        training_flops=mean("training_flops"),
        flops_ratio=ratio("training_flops"),
        seconds=mean("seconds"),
        step_time_ratio=ratio("seconds_per_step"),
        layer_pass_ratio=mean("layer_pass_ratio"),
        loss_nats=mean("loss_nats"),
        held_out_nats=None if not held_out or None in held_out else statistics.fmean(held_out),
        rewards=ends("reward"),
        answer_lengths=ends("answer_tokens"),
        alarms=alarms,
    )


HEADER = (
    "member",
    "loops",
    "seeds",
    "steps",
    "tokens",
    "answer tokens",
    "training FLOPs",
    "FLOPs, twin = 1",
    "seconds",
    "step time, twin = 1",
    "layer passes, twin = 1",
    "loss, nats",
    "held-out loss",
    "batches and first weights",
)


def cells(row: MemberSummary) -> tuple[str, ...]:
    """A row of the table, by `HEADER`."""
    failed = f", {len(row.failed)} failed" if row.failed else ""
    return (
        row.name,
        row.loops,
        f"{len(row.seeds)}{failed}",
        _number(row.num_steps, ",.0f"),
        _number(row.tokens, ",.0f"),
        _number(row.answer_tokens, ",.0f"),
        _number(row.training_flops, ".3g"),
        _number(row.flops_ratio, ".3f"),
        _number(row.seconds, ".1f"),
        _number(row.step_time_ratio, ".3f"),
        _number(row.layer_pass_ratio, ".3f"),
        _number(row.loss_nats, ".4f"),
        _number(row.held_out_nats, ".4f"),
        "DIFFER" if row.alarms else "shared" if row.seeds else "–",
    )


def report(values: Mapping[str, Any], rows: Sequence[MemberSummary]) -> str:
    """The table as Markdown, with what each member is for, failures and alarms under it."""
    begins = f"the set {values['from']}" if values["from"] else values["model"]
    lines = [
        f"# {values['recipe']} at {values['scale']} size, from {begins}",
        "",
        f"Loops {values['loops']}; seeds {', '.join(map(str, values['seeds']))}. Means over seeds. Tokens leave padding out; seconds are",
        "those of training steps; layer passes are of the passes that were drawn; the loss is what was minimised, over the last tenth",
        "of the steps.",
        "",
        "| " + " | ".join(HEADER) + " |",
        "| --- | --- |" + " ---: |" * (len(HEADER) - 3) + " --- |",
        *("| " + " | ".join(cells(row)) + " |" for row in rows),
        "",
    ]
    for row in rows:
        begun = f" It begins with {row.begins_with}." if row.begins_with else ""
        lines.append(f"- {row.name}: {row.why}.{begun}")
    lines += [
        f"- {row.name}, GRPO: reward {row.rewards[0]:.3f} in the first tenth of its steps, {row.rewards[1]:.3f} in the last; "
        f"{row.answer_lengths[0]:,.0f} and {row.answer_lengths[1]:,.0f} tokens an answer. FLOPs and seconds above are of both stages."
        for row in rows
        if row.rewards is not None and row.answer_lengths is not None
    ]
    lines += [f"- ALARM {row.name}: {alarm}: no comparison with it is fair" for row in rows for alarm in row.alarms]
    lines += [f"- {row.name}, seed {seed}, failed: {reason}" for row in rows for seed, reason in row.failed.items()]
    return "\n".join(lines) + "\n"


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)
