"""Evaluation over several processes: the records of one, whatever their number, also after a kill; an error in one ends all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import loopwise
from loopwise.decoding import DecodingRule
from loopwise.evaluation import Ranks, RanksError, check_parity
from loopwise.records import Record, Run, read_run
from loopwise.tasks import Grade
from test_evaluation import looped, make_task
from tiny import tiny_model, tiny_tokenizer

SOURCE = Path(__file__).resolve().parents[1] / "src"


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups of one batch, so that a few items make several."""
    monkeypatch.setattr("loopwise.evaluation.answering.REFILL_BATCHES", 1)


def together(size: int, work: Callable[[Ranks], Any]) -> list[Any]:
    """What several ranks return or raise; here they are threads that share a store."""
    store = dist.HashStore()

    def one(rank: int) -> Any:
        ranks = Ranks(rank=rank, size=size, store=store)
        try:
            return work(ranks)
        except Exception as error:
            ranks.fail()
            return error

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(one, range(size)))


def alike(records: tuple[Record, ...]) -> list[Record]:
    """Records without what no two runs have in common."""
    return [replace(record, seconds=None) for record in records]


def header_of(run: Run) -> dict[str, Any]:
    return {name: value for name, value in run.header.items() if name not in ("started", "parity")}


TOKENIZER = tiny_tokenizer()
TOKENIZER.add_tokens(["A", "B", "C"])
CHECKED = check_parity(tiny_model("llama"), [[5, 6, 7], [8, 9], [4, 5, 6, 7], [9]], new_tokens=2)
"""Parity has tests of its own."""


def model() -> Any:
    """The same model at every call, with tokens for the letters."""
    found = looped()
    torch.manual_seed(0)
    found.resize_token_embeddings(len(TOKENIZER), mean_resizing=False)
    return found


def spread(size: int, out: Path | None, **more: Any) -> list[Any]:
    """One evaluation in several ranks, each with a model of its own."""
    models = [model() for _ in range(size)]
    options = {"task": make_task(), "out": out, "batch_size": 2, "parity": CHECKED} | more
    return together(size, lambda ranks: loopwise.evaluate(models[ranks.rank], TOKENIZER, ranks=ranks, **options))


def alone(out: Path | None, **more: Any) -> Run:
    """The same in one process that knows nothing of ranks."""
    return loopwise.evaluate(model(), TOKENIZER, **({"task": make_task(), "out": out, "batch_size": 2, "parity": CHECKED} | more))


@pytest.mark.parametrize("kind", ["generate", "letters"])
@pytest.mark.parametrize("size", [2, 3])
def test_several_ranks_write_the_records_of_one_process(kind: str, size: int, tmp_path: Path) -> None:
    one = alone(tmp_path / "one", task=make_task(kind))
    runs = spread(size, tmp_path / "ranks", task=make_task(kind))
    for run in (*runs, read_run(tmp_path / "ranks")):
        assert alike(tuple(sorted(run.records, key=lambda record: record.key))) == alike(one.records)
        assert header_of(run) == header_of(one)
    assert json.loads((tmp_path / "ranks" / "meter.json").read_text())["ranks"] == size


def test_sampled_answers_are_the_same_and_in_memory_too() -> None:
    rule = DecodingRule(temperature=0.8)
    one = alone(None, rule=rule, samples=3, batch_size=4)
    for run in spread(2, None, rule=rule, samples=3, batch_size=4):
        assert alike(run.records) == alike(one.records) and run.source == "memory"


def test_what_is_decoded_together_does_not_depend_on_the_number_of_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules["loopwise.evaluation.answering"]
    groups: list[tuple[str, ...]] = []
    real = module.generate

    def spy(model: Any, tokenizer: Any, prompts: list[str], **options: Any) -> Any:
        groups.append(tuple(prompts))
        return real(model, tokenizer, prompts, **options)

    monkeypatch.setattr(module, "generate", spy)
    alone(None, batch_size=3)
    expected = sorted(groups)
    groups.clear()
    spread(3, None, batch_size=3)
    assert sorted(groups) == expected and len(expected) == 4


def test_every_rank_takes_batches_and_the_first_tells_how_far_all_are(tmp_path: Path) -> None:
    both = threading.Barrier(2, timeout=200)
    graded: list[set[str]] = [set(), set()]
    shares: list[list[float]] = [[], []]
    models = [model(), model()]

    def work(ranks: Ranks) -> Run:
        def grade(item: Any, text: str) -> Grade:
            if not graded[ranks.rank]:
                both.wait()  # nobody goes on before both have a batch
            graded[ranks.rank].add(item.name)
            return Grade(correct=True, answer=None, rule="toy")

        return loopwise.evaluate(
            models[ranks.rank],
            TOKENIZER,
            make_task(grader=grade),
            out=tmp_path,
            batch_size=2,
            parity=CHECKED,
            ranks=ranks,
            progress=shares[ranks.rank].append,
        )

    assert len(together(2, work)[0].records) == 10
    assert len(graded[0]) + len(graded[1]) == 10 and all(graded) and not graded[0] & graded[1]
    assert not shares[1] and shares[0] == sorted(shares[0]) and shares[0][-1] == 1.0


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 3)])
def test_a_stopped_run_goes_on_in_another_number_of_ranks(before: int, after: int, tmp_path: Path) -> None:
    whole = alone(tmp_path / "whole")
    grades = threading.Semaphore(5)

    def stopping(item: Any, text: str) -> Grade:
        if not grades.acquire(blocking=False):
            raise KeyError("stopped")
        return Grade(correct="w5" in text, answer=text[-3:] or None, rule="toy")

    stopped = spread(before, tmp_path / "part", task=make_task(grader=stopping))
    assert all(isinstance(one, KeyError | RanksError) for one in stopped)
    there = (tmp_path / "part" / "records.jsonl").read_text()
    assert len(there.splitlines()) < 10
    for run in spread(after, tmp_path / "part"):
        assert alike(run.records) == alike(whole.records)
    assert (tmp_path / "part" / "records.jsonl").read_text().startswith(there), "what was written stays"


def test_where_no_answer_is_missing_no_rank_checks_anything(tmp_path: Path) -> None:
    whole = alone(tmp_path)
    checks: list[int] = []

    def check() -> Any:
        checks.append(1)
        return CHECKED

    for run in spread(2, tmp_path, parity=check):
        assert run.records == whole.records and run.header == whole.header
    assert not checks
    file = tmp_path / "records.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))
    for run in spread(2, tmp_path, parity=check):
        assert alike(run.records) == alike(whole.records)
    assert len(checks) == 2


def test_an_error_in_one_rank_ends_all(tmp_path: Path) -> None:
    models = [model(), model()]

    def work(ranks: Ranks) -> Run:
        def grade(item: Any, text: str) -> Grade:
            if ranks.rank == 1:
                raise ValueError("no room")
            return Grade(correct=True, answer=None, rule="toy")

        task = make_task(number=40, grader=grade)
        return loopwise.evaluate(models[ranks.rank], TOKENIZER, task, out=tmp_path, batch_size=1, parity=CHECKED, ranks=ranks)

    first, second = together(2, work)
    assert str(second) == "no room"
    assert isinstance(first, RanksError) and "another process" in str(first) and "\n" not in str(first)


def test_ranks_that_are_not_alike_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    models = [tiny_model("llama"), tiny_model("llama", seed=1)]
    options = {"task": make_task(), "out": tmp_path / "run", "parity": CHECKED}
    first, second = together(2, lambda ranks: loopwise.evaluate(models[ranks.rank], tiny_tokenizer(), ranks=ranks, **options))
    assert isinstance(second, RanksError) and "has another model_hash" in str(second) and "\n" not in str(second)
    assert isinstance(first, RanksError)
    assert not (tmp_path / "run").exists()


def test_a_folder_with_another_run_is_refused_in_every_rank(tmp_path: Path) -> None:
    alone(tmp_path, batch_size=4)
    first, second = spread(2, tmp_path, batch_size=2)
    assert "another batch_size" in str(first) and isinstance(second, RanksError)


def test_values_of_any_size_come_as_they_were_sent() -> None:
    value = {"text": "ä\u2028" * 700_000, "number": 0.1, "none": None}

    def work(ranks: Ranks) -> Any:
        if ranks.rank == 0:
            ranks.send("value", value)
        found = ranks.receive("value")
        ranks.add("seen", 1)
        ranks.wait_for("seen", 2)
        return found

    assert together(2, work) == [value, value]


@pytest.mark.parametrize(("rank", "size"), [(2, 2), (-1, 1), (0, 0)])
def test_a_rank_that_cannot_be_is_refused(rank: int, size: int) -> None:
    with pytest.raises(RanksError, match=f"rank {rank} of {size}"):
        Ranks(rank=rank, size=size, store=dist.HashStore())
    with pytest.raises(RanksError, match="start them with torchrun"):
        Ranks(rank=0, size=2)


# Under torchrun


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    tiny_model("llama").save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def start(*arguments: str, ranks: int) -> subprocess.Popen[str]:
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--standalone"] if ranks > 1 else []
    environment = os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, *launcher, "-m", "loopwise", *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        printed, errors = process.communicate(timeout=500)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return process.returncode, printed, errors


def answers(base: Path, out: Path, *more: str) -> list[str]:
    return [
        "evaluate",
        str(base),
        "--task",
        "ladder",
        "--limit",
        "60",
        "--budget",
        "48",
        "--batch-size",
        "2",
        "--fixed-rows",
        "--out",
        str(out),
        *more,
    ]


@pytest.fixture(scope="module")
def whole(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The run of one process."""
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("whole")
    status, _, errors = finish(start(*answers(base, out), ranks=1))
    assert status == 0, errors
    return read_run(out)


def assert_same(out: Path, whole: Run) -> None:
    by_key = sorted(read_run(out).records, key=lambda record: record.key)
    assert alike(tuple(by_key)) == alike(tuple(sorted(whole.records, key=lambda record: record.key)))


@pytest.mark.slow
def test_torchrun_gives_the_run_of_one_process_and_one_process_speaks(base: Path, whole: Run, tmp_path: Path) -> None:
    status, printed, errors = finish(start(*answers(base, tmp_path), ranks=2))
    assert status == 0, errors[-3000:]
    assert printed.count("60 answers") == 1 and errors.count("100%") == 1
    assert_same(tmp_path, whole)
    assert header_of(read_run(tmp_path)) == header_of(whole)


@pytest.mark.slow
def test_killed_with_9_in_two_ranks_it_goes_on_in_one_and_in_three(base: Path, whole: Run, tmp_path: Path) -> None:
    for ranks in (2, 3):
        process = start(*answers(base, tmp_path), ranks=ranks)
        before = len(lines_of(tmp_path))
        deadline = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < deadline and len(lines_of(tmp_path)) < before + 5:
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL and before + 5 <= len(lines_of(tmp_path)) < 60
    status, _, errors = finish(start(*answers(base, tmp_path), ranks=1))
    assert status == 0, errors
    assert_same(tmp_path, whole)


def lines_of(folder: Path) -> list[str]:
    file = folder / "records.jsonl"
    return file.read_text().splitlines() if file.exists() else []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "command", "words"),
    [
        (["--task", "nothing"], "evaluate", "nothing"),
        (["--budget", "many"], "evaluate", "many"),
        (["--task", "loss", "--text", "x.txt"], "evaluate", "in one process"),
        (["--data", "nowhere", "--task", "gsm8k"], "evaluate", "nowhere"),
        (["--loops", "1:99 x2"], "trial", "99"),
    ],
)
def test_an_error_is_one_line_of_one_process(base: Path, tmp_path: Path, more: list[str], command: str, words: str) -> None:
    status, _, errors = finish(start(command, str(base), "--out", str(tmp_path / "run"), "--task", "ladder", *more, ranks=2))
    said = [line for line in errors.splitlines() if line.startswith(f"loopwise {command}:")]
    assert status != 0 and len(said) == 1 and words in said[0], errors[-3000:]
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_trial_in_two_ranks_is_that_of_one_process(base: Path, tmp_path: Path) -> None:
    for ranks in (1, 2):
        command = ["trial", str(base), "--loops", "1:4 x2", "--task", "ladder", "--limit", "12", "--budgets", "8", "16", "--noise-floor"]
        status, printed, errors = finish(
            start(*command, "--batch-size", "4", "--fixed-rows", "--out", str(tmp_path / str(ranks)), ranks=ranks)
        )
        assert status == 0 and printed.count("report.html") == 1, errors[-3000:]
    one, two = tmp_path / "1", tmp_path / "2"
    for name in ("plan.json", "noise_floor.json"):
        assert (one / name).read_text() == (two / name).read_text()
    folders = [file.parent.relative_to(one) for file in sorted(one.rglob("header.json"))]
    assert len(folders) > 4 and folders == [file.parent.relative_to(two) for file in sorted(two.rglob("header.json"))]
    for folder in folders:
        assert_same(two / folder, read_run(one / folder))
    verdicts = [json.loads((folder / "verdict.json").read_text()) for folder in (one, two)]
    for name in ("verdict", "sentence", "equal_parameters"):
        assert verdicts[0][name] == verdicts[1][name]
