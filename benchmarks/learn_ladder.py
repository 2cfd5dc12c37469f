"""Does a loop that a small net learns pay on the arithmetic ladder? The whole experiment from nothing, on one core.

A Llama of one million parameters learns the ladder's lower rungs from worked training problems until it solves a part of them. Then a
mid-depth loop is learnt by two recipes, with the twin, equal training FLOPs, the loop elsewhere and both at three times the tokens, over
three seeds; each set is tried on test items by both tests, with and without budget forcing. Every stage is kept under --out: the same
command goes on after a kill.

    OMP_NUM_THREADS=1 python benchmarks/learn_ladder.py --out runs/ladder           # some 40 minutes on one core
    OMP_NUM_THREADS=1 python benchmarks/learn_ladder.py --out runs/tiny --size tiny  # a minute: does the script work?

Training problems are of the ladder's train side, whose calculations no test item asks for. One in ten of those calculations is kept out
of training, too: on these problems the trained net is measured, and the rungs of the trial are those that it solves to 20 to 80 %.
Numbers of the net and of its training are guesses that were not searched.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from loopwise.cli import main as loopwise
from loopwise.cli.training_line import TrainingLine
from loopwise.data import ChatTokenizerChoice, TraceBatches, TraceSet, TraceSettings, encode_traces
from loopwise.decoding import DecodingRule
from loopwise.evaluation import evaluate
from loopwise.models import load
from loopwise.protocol import compare
from loopwise.records import Run, read_json, read_run, write_json
from loopwise.tasks import Item, task_named
from loopwise.tasks.ladder import LADDER, PROMPT, TEST_SEED
from loopwise.tasks.problems import RUNGS, Problem, problems, side_of, solution
from loopwise.training import Execution, ShortFinetune, Tuning, train_short_finetune

RECIPES = ("short-ft", "conversion")
CONTROLS = ("equal-flops", "relocated", "x3")
SEEDS = ("0", "1", "2")
CHECKED = (2, 3, 4, 5)
"""Rungs that may be tried; those below have no calculation to spare. Rung 2 has three, so what it says of the base is rough."""
SOLVED = (0.2, 0.8)
"""The accuracy of the base on a rung of the trial."""
CHECK_SHARE = 10
"""One calculation in this many of the train side checks the base, and trains nothing."""
TABLES = {"placements": "the loop elsewhere", "longer twins": "longer twin, never deciding"}
BASE_SEED, LEARN_SEED, CHECK_SEED = 1, 2, 3
BASE_ROWS, LEARN_ROWS, ROW_TOKENS = 8, 4, 128
PIECES = r"\d|\n[^\d\n]*|[^\d\n]+"
"""A digit is a token of its own, and so is what opens the answer: it is the same whether it was written or forced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much of everything. Guesses, by counted FLOPs: some minutes of one core for the base, 18 for the sets, 10 for the trials."""

    width: int
    layers: int
    loops: str
    vocabulary: int
    draws: Mapping[int, int]
    """Training problems drawn of each rung for the base; equal ones are left out later."""
    learn_share: float
    """Of these, how many a set is trained on, drawn anew."""
    base_tokens: int
    learn_tokens: int
    num_check: int
    """Problems of each rung that the base is measured on."""
    limit: int
    """Test items of a trial, of all its rungs together."""
    budgets: tuple[int, ...]
    """Tokens of an answer: half a story, most of it, all of it."""


SIZES = {
    "full": Size(
        width=96,
        layers=8,
        loops="3:5 x2 damped beta=0.5",
        vocabulary=768,
        draws={0: 100, 1: 150, 2: 1500, 3: 8000, 4: 4000, 5: 4000},
        learn_share=0.2,
        base_tokens=900_000,
        learn_tokens=30_000,
        num_check=96,
        limit=300,
        budgets=(12, 24, 48),
    ),
    "tiny": Size(
        width=32,
        layers=6,
        loops="2:4 x2 damped beta=0.5",
        vocabulary=400,
        draws=dict.fromkeys(range(6), 60),
        learn_share=1.0,
        base_tokens=20_000,
        learn_tokens=2_000,
        num_check=4,
        limit=8,
        budgets=(12, 16),
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the experiment's folder")
    parser.add_argument("--size", choices=tuple(SIZES), default="full")
    args = parser.parse_args()
    out, size = args.out, SIZES[args.size]
    out.mkdir(parents=True, exist_ok=True)
    write_traces(out / "base.jsonl", BASE_SEED, size.draws)
    write_traces(out / "learn.jsonl", LEARN_SEED, {rung: round(size.learn_share * draws) for rung, draws in size.draws.items()})
    fresh_model(out / "fresh", out / "base.jsonl", size)
    train_base(out, size)
    rungs = chosen_rungs(out, size)
    task = "ladder:" + ",".join(map(str, rungs))
    check_apart(out, task, rungs, size)
    encode(out, "learn")
    for recipe in RECIPES:
        learn_and_try(out, recipe, task, size)
    report = report_text(out, task, size)
    (out / "report.md").write_text(report, encoding="utf-8")
    print(report)


def training_problems(seed: int, rung: int, *, check: bool) -> Iterator[Problem]:
    """Problems of the train side without end: those that check the base, or all others."""
    rng = random.Random(f"{seed}/{rung}")
    while True:
        problem = RUNGS[rung].draw(rng)
        if side_of(problem) == "train" and _checks(problem) == check:
            yield problem


def _checks(problem: Problem) -> bool:
    key = "check " + " ".join(sorted(problem.key.split()))
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % CHECK_SHARE == 0


def trace(problem: Problem) -> dict[str, str]:
    """A training problem with its worked steps and its answer, as the task asks for them."""
    steps = solution(problem).removesuffix(f" The answer is {problem.answer}.")
    return {"question": PROMPT.format(question=problem.question), "answer": f"{steps}{LADDER.answer_opener}{problem.answer}"}


def write_traces(file: Path, seed: int, num_draws: Mapping[int, int]) -> None:
    if file.exists():
        return
    made = []
    for rung, draws in num_draws.items():
        stream = training_problems(seed, rung, check=False)
        made += [next(stream) for _ in range(draws)]
    random.Random(seed).shuffle(made)
    whole(file, "".join(json.dumps(trace(problem)) + "\n" for problem in made))


def check_apart(out: Path, task: str, rungs: Sequence[int], size: Size) -> None:
    """No calculation, and no question, of a test item may be in the training problems."""
    asked = {item.prompt for item in task_named(task).load(None, size.limit)}
    asked |= {trace(one)["question"] for rung in rungs for one in problems(TEST_SEED, rung, "test", -(-size.limit // len(rungs)))}
    for name in ("base", "learn"):
        lines = (out / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        if shared := asked.intersection(json.loads(line)["question"] for line in lines):
            raise SystemExit(f"{out / name}.jsonl: trains on the test item {min(shared)!r}")


def fresh_model(folder: Path, traces: Path, size: Size) -> None:
    """A Llama with random weights and a tokenizer of the ladder's words."""
    if folder.exists():
        return
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(PIECES), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(
        vocab_size=size.vocabulary,
        special_tokens=["<end>", "<pad>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    rows = [json.loads(line) for line in traces.read_text(encoding="utf-8").splitlines()]
    tokenizer.train_from_iterator([row[name] for row in rows for name in ("question", "answer")], trainer)
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=size.width,
        intermediate_size=3 * size.width,
        num_hidden_layers=size.layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.05,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=1,
    )
    torch.manual_seed(0)
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    LlamaForCausalLM(config).save_pretrained(part)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<pad>").save_pretrained(part)
    part.rename(folder)


def encode(out: Path, name: str) -> TraceSet:
    settings = TraceSettings(sources=(f"{name}={out / name}.jsonl",), sequence_tokens=ROW_TOKENS, raw=True)
    return encode_traces(settings, ChatTokenizerChoice(name=str(out / "fresh"), label="ladder"), out / f"{name}-traces")


def train_base(out: Path, size: Size) -> None:
    """All weights on worked problems, by the engine that later trains the sets."""
    source = TraceBatches(encode(out, "base"), num_sequences=BASE_ROWS, sequence_tokens=ROW_TOKENS, seed=BASE_SEED)
    tuning = Tuning(num_tokens=size.base_tokens, learning_rate=2e-3, warmup_share=0.05, weight_decay=0.1, dtype="fp32")
    line = TrainingLine(quiet=False, at_first_step=lambda: None)
    execution = Execution(device="cpu", checkpoint_every_steps=200)
    result = train_short_finetune(
        out / "fresh", None, source, ShortFinetune(tuning=tuning), out / "base", execution=execution, reporter=line
    )
    line.close()
    values = {"steps": result.state.step, "tokens": result.state.tokens, "flops": result.state.flops, "seconds": result.state.seconds}
    write_json(out / "base.json", values | {"loss": result.loss, "epochs": source.epochs(result.state.step)})


def chosen_rungs(out: Path, size: Size) -> tuple[int, ...]:
    """The rungs that the base solves in part, by training problems that it was not trained on; the nearest one where there is none."""
    file = out / "rungs.json"
    if not file.exists():
        model, tokenizer = load(out / "base" / "model")
        solved = {}
        for rung in CHECKED:
            run = evaluate(model, tokenizer, LADDER, items=check_items(rung, size.num_check), **base_decoding(size))
            solved[rung] = sum(record.correct for record in run.records) / len(run.records)
        low, high = SOLVED
        within = [rung for rung, share in solved.items() if low <= share <= high]
        nearest = min(solved, key=lambda rung: abs(solved[rung] - (low + high) / 2))
        write_json(file, {"solved": solved, "rungs": within or [nearest]})
    return tuple(read_json(file)["rungs"])


def check_items(rung: int, count: int) -> list[Item]:
    found: dict[str, Problem] = {}
    for problem in training_problems(CHECK_SEED, rung, check=True):
        found[problem.question] = problem
        if len(found) == count:
            break
    return [Item(name=f"check{rung}-{n}", prompt=trace(p)["question"], gold=str(p.answer)) for n, p in enumerate(found.values())]


def base_decoding(size: Size) -> dict[str, Any]:
    rule = DecodingRule(budget_forcing=True, reserve_tokens=LADDER.reserve_tokens)
    return {"rule": rule, "budget_tokens": size.budgets[-1], "batch_size": 128}


def learn_and_try(out: Path, recipe: str, task: str, size: Size) -> None:
    """One set and its trial, by the commands that a reader would give."""
    where, trial = str(out / recipe), str(out / f"{recipe}-trial")
    learn = ["--model", str(out / "base" / "model"), "--loops", size.loops, "--data", str(out / "learn-traces"), "--scale", "nano"]
    learn += ["--tokens", str(size.learn_tokens), "--batch", str(LEARN_ROWS), "--sequence-tokens", str(ROW_TOKENS), "--device", "cpu"]
    command("learn", recipe, *learn, "--seeds", *SEEDS, "--controls", *CONTROLS, "--checkpoint-every", "50", "--out", where)
    budgets = map(str, size.budgets)
    command("trial", where, "--task", task, "--budgets", *budgets, "--limit", str(size.limit), "--batch-size", "128", "--out", trial)


def report_text(out: Path, task: str, size: Size) -> str:
    """The tables of the experiment, from what lies in its folder."""
    base, rungs = read_json(out / "base.json"), read_json(out / "rungs.json")
    solved = ", ".join(f"{100 * share:.0f} % of rung {rung}" for rung, share in rungs["solved"].items())
    seen = base_on_test(out, task, size)
    lines = [
        f"base: {base['tokens']:,} tokens, {base['epochs']:.2f} epochs, {base['flops']:.3g} training FLOPs, {base['seconds']:.0f} s, "
        f"loss {base['loss']:.3f} nats",
        f"it solves {solved}, of problems kept out of training, and {percent(seen):.1f} % of the trial's test items ({task})",
    ]
    for recipe in RECIPES:
        lines += ["", f"## {recipe}", "", *verdict_lines(out / f"{recipe}-trial"), "", *contrasts(out / f"{recipe}-trial", size)]
        lines += ["", *members(out / recipe, out / f"{recipe}-trial", size)]
    return "\n".join(lines) + "\n"


def base_on_test(out: Path, task: str, size: Size) -> Run:
    model, tokenizer = load(out / "base" / "model")
    return evaluate(model, tokenizer, task, out=out / "base-test", limit=size.limit, **base_decoding(size))


def verdict_lines(trial: Path) -> list[str]:
    return [f"- {name}: {sentence}" for name, sentence in read_json(trial / "set_verdict.json")["pairs"].items()]


def contrasts(trial: Path, size: Size) -> list[str]:
    """Each comparison under the deciding rule and budget, with its interval over items, and over items and seeds."""
    found: list[tuple[str, Mapping[str, Any], float]] = []
    for where, words in ((trial, ""), (trial / "pairs" / "looped-x3", ", x3")):
        verdict = read_json(where / "verdict.json")
        for test in ("equal_parameters", "equal_flops"):
            if outcome := verdict[test]:
                found.append((f"{outcome['name']}{words}", outcome["comparison"], outcome["p_value"]))
    alike = compare(*(runs(trial, name, "budget-forcing", size.budgets[-1]) for name in ("looped", "equal-flops")))
    found.append(("equal training FLOPs, same budget", json.loads(json.dumps(asdict(alike))), alike.p_value))
    for row in read_json(trial / "set_verdict.json")["controls"]:
        found.append((TABLES[row["table"]], row["comparison"], row["comparison"]["p_value"]))
    lines = ["| comparison | first | second | first % | second % | points [95 %] | over seeds too | p | seeds ahead |"]
    lines.append("| --- | --- | --- | ---: | ---: | --- | --- | ---: | ---: |")
    for words, c, p in found:
        names, shares = f"{c['looped']} | {c['other']}", f"{c['looped_percent']:.1f} | {c['other_percent']:.1f}"
        seeds = f"{c['seeds_favouring']} of {len(c['seeds'])}"
        points = f"{c['delta_points']:+.1f} {interval(c['ci95'])}"
        p_words = "< 0.001" if p < 0.001 else f"{p:.3f}"
        lines.append(f"| {words} | {names} | {shares} | {points} | {interval(c['ci95_items_and_seeds'])} | {p_words} | {seeds} |")
    return lines


def members(folder: Path, trial: Path, size: Size) -> list[str]:
    """What each member was charged in training, and its accuracy at every budget, means over seeds."""
    rules = [(rule, budget) for rule in ("plain", "budget-forcing") for budget in size.budgets]
    heads = [f"{rule} {budget} %" for rule, budget in rules]
    lines = [f"| member | loops | steps | training FLOPs | seconds | FLOPs an answer | {' | '.join(heads)} |"]
    lines.append("| --- | --- |" + " ---: |" * (4 + len(heads)))
    for row in read_json(folder / "summary.json")["members"]:
        tried = {arm: runs(trial, row["name"], *arm) for arm in rules}
        shares = [f"{percent(*found):.1f}" if found else "–" for found in tried.values()]
        records = [record for run in tried[rules[-1]] for record in run.records]
        each = sum(record.flops or 0.0 for record in records) / max(1, len(records))
        spent = f"{row['num_steps']:.0f} | {row['training_flops']:.3g} | {row['seconds']:.0f} | {each:.3g}"
        lines.append(f"| {row['name']} | {row['loops']} | {spent} | {' | '.join(shares)} |")
    return lines


def runs(trial: Path, member: str, rule: str, budget: int) -> list[Run]:
    folder = trial / "runs" / member / f"{member}-{rule}-{budget}"
    return [read_run(header.parent) for header in sorted(folder.glob("seed-*/header.json"))]


def percent(*given: Run) -> float:
    records = [record for run in given for record in run.records]
    return 100 * sum(record.correct for record in records) / len(records)


def interval(bounds: Sequence[float] | None) -> str:
    return "–" if bounds is None else f"[{bounds[0]:+.1f}, {bounds[1]:+.1f}]"


def command(*args: str) -> None:
    print("$ loopwise " + " ".join(f'"{arg}"' if " " in arg else arg for arg in args), flush=True)
    loopwise(args)


def whole(file: Path, text: str) -> None:
    part = file.with_name(file.name + ".part")
    part.write_text(text, encoding="utf-8")
    part.rename(file)


if __name__ == "__main__":
    main()
