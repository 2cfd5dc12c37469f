"""What ran: the runs' headers, their parity checks, the noise floor, the plan, and arms that could not take part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..protocol import Plan, PlannedTask, Verdict
from .blocks import Bullets, Cell, Row, Table, Text, columns, row
from .labels import execution_order, rule_words
from .numbers import MEASURE_NAMES, UNKNOWN, count, known_number, points, ratio, scaled, yes_no

Header = Mapping[str, Any]
NoiseFloors = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None
"""What repeated arms showed: one, several, or nothing."""

SHARED_FIELDS: dict[str, str] = {
    "model": "Model",
    "model_hash": "Model hash",
    "weights": "Weights",
    "num_layers": "Layers",
    "num_parameters": "Parameters",
    "dtype": "dtype",
    "device": "Device",
    "threads": "Threads",
    "versions": "Versions",
    "task_version": "Task version",
    "items_hash": "Hash of items and prompts",
    "decoding": "Decoding settings",
    "batch_size": "Batch size",
    "batch_plan": "Batch plan",
    "engine": "Engine",
    "flops_convention": "FLOPs convention",
    "started": "Started",
}
"""What runs usually share, in the order of its table; a field that differs lists each value with its runs."""
_NUMBERS = ("num_layers", "num_parameters", "threads", "batch_size")


def header_name(header: Header) -> str:
    """A run's name: its arm, and its benchmark."""
    return " / ".join(str(header[key]) for key in ("arm", "task") if header.get(key))


def num_layers_of(headers: Sequence[Header]) -> int | None:
    """The model's layer count, where the looped runs' headers agree on one."""
    found = {known_number(header.get("num_layers")) for header in headers if header.get("looped")}
    value = found.pop() if len(found) == 1 else None
    return int(value) if value is not None and value.is_integer() else None


def loops_table(headers: Sequence[Header], verdict: Verdict) -> Table | None:
    """The resolved loops: which layers run in which order."""
    seen = dict.fromkeys((str(one.get("loops", "unknown")), *_ratios(one)) for one in headers)
    if not seen:
        return None
    rows = [
        row(
            loops,
            execution_order(loops, int(layers) if layers is not None and layers.is_integer() else None) or UNKNOWN,
            UNKNOWN if layers is None or passes is None else f"{count(layers)} → {count(layers * passes)}",
            ratio(passes),
            ratio(flops),
            tone="key" if loops == verdict.loops else "",
        )
        for loops, layers, passes, flops in seen
    ]
    return Table(
        name="table-loops",
        title="Loops, resolved",
        caption="The layers of one forward pass in the order in which they run; n.mlp is a further run of layer n's MLP half.",
        columns=columns("Loop", "Order of execution", "#Layer passes", "#Layer-pass ratio", "#FLOPs ratio"),
        rows=tuple(rows),
    )


def _ratios(header: Header) -> tuple[float | None, float | None, float | None]:
    return known_number(header.get("num_layers")), known_number(header.get("layer_pass_ratio")), known_number(header.get("flops_ratio"))


def shared_table(headers: Sequence[Header]) -> Table | None:
    """What the runs share, and where they do not, who differs."""
    rows = [
        row(title, _shared_value(headers, key))
        for key, title in SHARED_FIELDS.items()
        if any(header.get(key) is not None for header in headers)
    ]
    if not rows:
        return None
    return Table(
        name="table-shared",
        title="Model and machine",
        caption="One value where all runs agree; otherwise each value with its runs.",
        columns=columns("What", "Value"),
        rows=tuple(rows),
    )


def _shared_value(headers: Sequence[Header], key: str) -> str:
    runs_of: dict[str, list[Header]] = {}
    for header in headers:
        runs_of.setdefault(_value_text(key, header.get(key)), []).append(header)
    if len(runs_of) == 1:
        return next(iter(runs_of))
    if key == "started":
        return f"{min(runs_of)} to {max(runs_of)}"
    return "; ".join(f"{text} ({_whose(headers, of)})" for text, of in runs_of.items())


def _whose(headers: Sequence[Header], some: Sequence[Header]) -> str:
    """The shortest true name of some of the runs: all looped, all unlooped, all of a benchmark, all of a rule, or a list."""
    for field, words in (("looped", {True: "looped runs", False: "unlooped runs"}), ("task", None), ("rule", None)):
        values = {str(header.get(field)) for header in some}
        if len(values) == 1 and sum(str(header.get(field)) in values for header in headers) == len(some):
            value = some[0].get(field)
            return words[bool(value)] if words else str(value)
    names = [header_name(header) for header in some]
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])} and {len(names) - 3} more"


def _value_text(key: str, value: Any) -> str:
    if value is None:
        return "not recorded"
    if key in _NUMBERS:
        number = known_number(value)
        return UNKNOWN if number is None else f"{count(number)} ({scaled(number)})" if key == "num_parameters" else count(number)
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {one}" for name, one in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def runs_table(headers: Sequence[Header]) -> Table | None:
    """One line a run."""
    if not headers:
        return None
    rows = [
        row(
            header_name(header) or "unnamed",
            str(header.get("loops", UNKNOWN)),
            rule_words(str(header["rule"]) if header.get("rule") else None),
            _number(header.get("budget_tokens")),
            _number(header.get("reserve_tokens")),
            _number(header.get("num_items")),
            _number(header.get("samples")),
            _value_text("seeds", header.get("seeds")),
        )
        for header in headers
    ]
    return Table(
        name="table-runs",
        title="Runs",
        caption="One line for each run that was judged. The reserve is what budget forcing keeps for the answer.",
        columns=columns("Run", "Loop", "Decoding", "#Budget (tokens)", "#Reserve (tokens)", "#Items", "#Samples", "#Seeds"),
        rows=tuple(rows),
    )


def _number(value: Any) -> str:
    return count(known_number(value))


def parity_table(headers: Sequence[Header]) -> Table | None:
    """Cached decoding against full recompute, once for runs that share a check."""
    checks: dict[str, list[Header]] = {}
    for header in headers:
        checks.setdefault(str(header.get("parity")), []).append(header)
    if not headers or all(not isinstance(header.get("parity"), Mapping) for header in headers):
        return None
    return Table(
        name="table-parity",
        title="Parity check",
        caption="Cached decoding against full recompute on the evaluation's own prompts: the largest difference of a logit (of a "
        "log-probability where vLLM decoded), and the tolerance that it had to keep.",
        columns=columns(
            "Runs", "Compared", "dtype", "#Prompts (tokens)", "#New tokens", "#Max |Δ logit|", "#Tolerance", "#Other argmax", "Passed"
        ),
        rows=tuple(_parity_row(headers, of) for of in checks.values()),
    )


def _parity_row(headers: Sequence[Header], of: Sequence[Header]) -> Row:
    parity = of[0].get("parity")
    whose = _whose(headers, of) if len(of) < len(headers) else "all runs"
    if not isinstance(parity, Mapping):
        return row(whose, "not recorded", *[UNKNOWN] * 7)
    ok = parity.get("ok")
    prompts = parity.get("prompt_tokens", parity.get("prompts"))
    tolerance = _small(parity.get("tolerance"))
    tolerance_from = parity.get("tolerance_from")
    return row(
        whose,
        str(parity.get("compared", UNKNOWN)),
        str(parity.get("dtype", UNKNOWN)),
        UNKNOWN if prompts is None else _value_text("prompts", prompts),
        _number(parity.get("new_tokens", parity.get("tokens"))),
        _difference(parity),
        tolerance + (f" ({tolerance_from})" if tolerance_from else ""),
        _number(parity.get("tokens_differing")),
        Cell(yes_no(ok if isinstance(ok, bool) else None), "" if ok else "loss", not ok),
    )


def _difference(parity: Mapping[str, Any]) -> str:
    """The largest difference of a logit, or where vLLM decoded, of a log-probability with the mean."""
    if "max_abs_nats" not in parity:
        return _small(parity.get("max_abs_logit_difference"))
    return f"{_small(parity['max_abs_nats'])} nats, mean {_small(parity.get('mean_abs_nats'))}"


def _small(value: Any) -> str:
    number = known_number(value)
    return UNKNOWN if number is None else f"{number:.1e}" if number else "0"


def noise_block(noise_floor: NoiseFloors) -> Text | Bullets:
    """What repeating an arm changed, of one arm or of several."""
    if not noise_floor:
        return Text("Noise floor. " + noise_text(None))
    floors = [noise_floor] if isinstance(noise_floor, Mapping) else list(noise_floor)
    texts = tuple("Noise floor. " + noise_text(one) for one in floors)
    return Text(texts[0]) if len(texts) == 1 else Bullets(texts)


def noise_text(noise_floor: Mapping[str, Any] | None) -> str:
    """How many answers flip when nothing changes but the batching."""
    if not isinstance(noise_floor, Mapping):
        return (
            "Not measured. Batching alone can flip greedy answers in bfloat16; ask for the noise floor to see how many answers of the twin "
            "change when nothing else does."
        )
    answers, flips = known_number(noise_floor.get("num_answers")), known_number(noise_floor.get("changed_grades"))
    share = f" ({100 * flips / answers:.1f}%)" if answers and flips is not None else ""
    sizes = noise_floor.get("batch_sizes")
    batches = f", batches of {sizes[0]} and of {sizes[1]}" if isinstance(sizes, list | tuple) and len(sizes) == 2 else ""
    moved = noise_floor.get("accuracy_points")
    texts, others = _number(noise_floor.get("changed_texts")), _number(noise_floor.get("changed_answers"))
    return (
        f"The arm {noise_floor.get('arm', UNKNOWN)} ran twice{batches}: {_number(flips)} of {_number(answers)} answers{share} flip "
        f"between right and wrong, {others} give another answer, {texts} have another text; accuracy moves by "
        f"{points(known_number(moved))} points. Differences of this size are noise."
    )


def plan_table(verdict: Verdict, plan: Plan | None) -> Table:
    """What was fixed, by whom, and how the statistics were done."""
    by = {"plan": "the plan, written before the runs", "caller": "the caller", "default": "default, not from a plan"}[verdict.deciding_by]
    rows = [
        row("Deciding rule and budget fixed by", by),
        row("Deciding decoding rule", rule_words(verdict.deciding_rule)),
        row("Deciding budget (tokens)", verdict.deciding_budget_label.replace("-", UNKNOWN)),
        row("Deciding measure of cost", UNKNOWN if verdict.deciding_measure is None else MEASURE_NAMES[verdict.deciding_measure]),
        row("Alpha (two-sided)", f"{verdict.alpha:g}"),
        row("Equivalence margin", f"±{verdict.margin_points:g} points, 90% interval"),
        row(
            "Intervals", f"paired bootstrap over {verdict.resampling}, {count(verdict.resamples)} resamples, seed {verdict.resampling_seed}"
        ),
    ]
    if plan is not None:
        limit = "all items" if plan.limit is None else f"the first {count(plan.limit)} items of each benchmark"
        budgets = "; ".join(f"{task.name}: {', '.join(map(str, task.budgets_tokens))}" for task in plan.tasks)
        votes = f"{plan.vote_samples} samples at temperature {plan.vote_temperature:g}" if plan.vote_samples else "none"
        longer = "none" if plan.longer_twin_ratio is None else f"{plan.longer_twin_ratio:g}× the deciding budget"
        draws = "greedy" if plan.temperature == 0 else f"temperature {plan.temperature:g}"
        decoding = f"{draws}, {count(plan.samples)} per item and seed, thinking {'on' if plan.thinking else 'off'}"
        decoding += "".join(f"; {one.name}: {words}" for one in plan.tasks if (words := _own_draws(one)))
        rows += [
            row("Planned items", limit),
            row("Planned budgets (tokens)", budgets),
            row("Planned decoding rules", ", ".join(map(rule_words, plan.rules))),
            row("Planned seeds", ", ".join(map(str, plan.seeds))),
            row("Planned decoding", decoding),
            row("Planned longer twin", longer),
            row("Planned repeated sampling", votes),
        ]
    return Table(
        name="table-plan",
        title="How it was judged",
        caption="What decides, and who fixed it.",
        columns=columns("What", "Value"),
        rows=tuple(rows),
    )


def _own_draws(task: PlannedTask) -> str:
    """How a benchmark is decoded by its own settings; empty where it has none."""
    words = [] if task.samples is None else [f"{count(task.samples)} per item and seed"]
    words += [] if task.temperature is None else [f"temperature {task.temperature:g}"]
    return ", ".join(words + (["thinking on"] if task.thinking else []))


def excluded_table(verdict: Verdict) -> Table | None:
    """Arms that could not take part, and why."""
    if not verdict.excluded:
        return None
    return Table(
        name="table-excluded",
        title="Not applicable",
        caption="Arms that could not take part.",
        columns=columns("Arm", "Reason"),
        rows=tuple(row(one.name, one.reason) for one in verdict.excluded),
    )
