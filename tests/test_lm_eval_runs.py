"""Runs of log-likelihoods: equal to stock lm-eval's on a plain model, really looped, resumable, and judged by the two tests."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

import loopwise
from data import data_dir
from likelihood_rows import FILES, row, write_rows
from loopwise.cost import cost_of, read_shape
from loopwise.decoding import DecodingRule
from loopwise.evaluation import Parity, ParityError, check_parity
from loopwise.models import load
from loopwise.models.embedded import gguf_file
from loopwise.models.families import ModelError
from loopwise.protocol import TrialError, judge
from loopwise.recipes.trial import trial
from loopwise.recipes.trial_settings import TrialSettings
from loopwise.records import RecordsError, Run, read_run
from loopwise.tasks import LIKELIHOODS, SUITES, Suite, SuiteTask, TaskError
from parrot import char_tokenizer
from tiny import tiny_model
from unrolled import unrolled_model

lm_eval = pytest.importorskip("lm_eval", reason="lm-eval is an extra")

TOKENIZER = char_tokenizer(None)
LOOP = "1:3 x2"
ORDER = [0, 1, 2, 1, 2, 3, 4, 5]


def model(loops: str | None = None, **changes: Any) -> Any:
    found = tiny_model("llama", max_position_embeddings=1024, **changes)
    if loops:
        loopwise.insert(found, loops)
    return found


@cache
def tiny_parity() -> Parity:
    """Made once: what is tested here is not decoding."""
    return check_parity(model(), [[5, 6, 7], [8, 9], [4, 5, 6, 7], [9]], new_tokens=8)


def evaluate(name: str, data: Path, of: Any = None, **more: Any) -> Run:
    settings: dict[str, Any] = {"parity": tiny_parity(), "batch_size": 5}
    return loopwise.evaluate(model() if of is None else of, TOKENIZER, f"lm-eval:{name}", data=data, **(settings | more))


def stock(name: str, files: dict[str, Path], of: Any, tokenizer: Any, cache_dir: Path, *, shots: int, limit: int, batch_size: int) -> Any:
    """lm-eval by itself: its configuration, its model class, its loop; rows from JSON files, as it documents it."""
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager
    from lm_eval.tasks import __file__ as tasks_file

    whole = name if name in LIKELIHOODS else "mmlu"
    manager = TaskManager(include_path=str(Path(tasks_file).parent / LIKELIHOODS[whole].folder), include_defaults=False)
    splits = {f"{kind}_split": split if split in files else None for kind, split in KINDS.items()}
    source = {
        "task": name,
        "dataset_path": "json",
        "dataset_name": None,
        "dataset_kwargs": {"data_files": {split: str(file) for split, file in files.items()}, "cache_dir": str(cache_dir)},
    }
    (task,) = manager.load({"group": "stock", "task": [source | splits]})["tasks"].values()
    found = lm_eval.simple_evaluate(
        model=HFLM(pretrained=of, tokenizer=tokenizer, batch_size=batch_size),
        tasks=[task],
        num_fewshot=shots,
        limit=limit,
        bootstrap_iters=0,
        task_manager=manager,
    )
    return found["results"][name], sorted(found["samples"][name], key=lambda sample: sample["doc_id"])


KINDS = {"training": "train", "validation": "validation", "test": "test", "fewshot": "dev"}


def assert_equal_to_stock(run: Run, results: dict[str, float], samples: list[dict[str, Any]], metric: str) -> None:
    by_item = {record.item: record for record in run.records}
    records = [by_item[item] for item in run_items(run)]
    assert len(records) == len(samples) > 1
    for record, sample in zip(records, samples, strict=True):
        assert record.extra["log_likelihoods"] == [answer[0] for (answer,) in sample["resps"]], "to the last bit"
        assert record.correct == (sample[metric] == 1)
    assert sum(record.correct for record in records) / len(records) == pytest.approx(results[f"{metric},none"])


def run_items(run: Run) -> list[str]:
    """The names of a run's items in the order of their rows."""
    return sorted((record.item for record in run.records), key=lambda item: int("".join(filter(str.isdigit, item)) or 0))


# Equal to stock lm-eval


@pytest.mark.parametrize("shots", [0, 2])
@pytest.mark.parametrize("name", list(LIKELIHOODS))
def test_results_equal_stock_lm_evals(name: str, shots: int, tmp_path: Path) -> None:
    if shots and not LIKELIHOODS[name].demonstrations:
        pytest.skip("asked without demonstrations")
    metric = LIKELIHOODS[name].metric
    asked = "mmlu_anatomy" if name == "mmlu" else name
    write_rows(tmp_path, name)
    files = {file.rpartition("/")[2].rpartition("_")[2]: tmp_path / f"{file}.jsonl" for file in FILES[name]}
    if name == "mmlu":
        for file in files.values():  # one subject has files of its own on the hub
            lines = [line for line in file.read_text().splitlines() if '"anatomy"' in line]
            file.write_text("\n".join(lines) + "\n")
    run = evaluate(f"{asked}@{shots}", tmp_path, limit=4)
    results, samples = stock(asked, files, model(), TOKENIZER, tmp_path / "cache", shots=shots, limit=4, batch_size=5)
    assert_equal_to_stock(run, results, samples, metric)


def test_the_other_metric_equals_stock_lm_evals(tmp_path: Path) -> None:
    write_rows(tmp_path, "arc_easy")
    run = evaluate("arc_easy:acc_norm", tmp_path)
    results, samples = stock(
        "arc_easy", {"test": tmp_path / "arc_easy/test.jsonl"}, model(), TOKENIZER, tmp_path / "cache", shots=0, limit=8, batch_size=5
    )
    assert_equal_to_stock(run, results, samples, "acc_norm")
    assert results["acc,none"] != results["acc_norm,none"], "the rows tell the two apart"


def test_the_model_reads_what_stock_lm_eval_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches too: MMLU's options share their readings, the longest come first."""
    from lm_eval.models.huggingface import HFLM

    from loopwise.evaluation.lm_eval_model import LoopedLM

    write_rows(tmp_path, "mmlu")
    file = tmp_path / "mmlu/test.jsonl"
    file.write_text("".join(line + "\n" for line in file.read_text().splitlines() if '"anatomy"' in line))
    seen: dict[type, list[list[list[int]]]] = {HFLM: [], LoopedLM: []}
    for kind, calls in seen.items():
        own = kind._model_call

        def spy(self: Any, inps: torch.Tensor, *more: Any, own: Any = own, calls: Any = calls, **named: Any) -> torch.Tensor:
            calls.append(inps.tolist())
            return own(self, inps, *more, **named)

        monkeypatch.setattr(kind, "_model_call", spy)
    evaluate("mmlu_anatomy", tmp_path, batch_size=3)
    stock("mmlu_anatomy", {"test": file}, model(), TOKENIZER, tmp_path / "cache", shots=0, limit=9, batch_size=3)
    assert [len(batch) for batch in seen[LoopedLM]] == [3, 1] and seen[LoopedLM] == seen[HFLM]


def test_contexts_longer_than_the_model_are_cut_as_stock_cuts_them_and_counted(tmp_path: Path) -> None:
    write_rows(tmp_path, "arc_easy")
    short = model()
    short.config.max_position_embeddings = 64
    run = evaluate("arc_easy@2", tmp_path, short)
    results, samples = stock(
        "arc_easy",
        {"test": tmp_path / "arc_easy/test.jsonl", "train": tmp_path / "arc_easy/train.jsonl"},
        short, TOKENIZER, tmp_path / "cache", shots=2, limit=8, batch_size=5,
    )  # fmt: skip
    assert_equal_to_stock(run, results, samples, "acc")
    assert run.header["num_items_cut"] == 8 and all(record.extra["tokens_cut"] > 100 for record in run.records)
    assert all(record.prompt_tokens == 4 * 64 for record in run.records)


# Looped


@pytest.mark.parametrize("name", ["hellaswag", "lambada_openai", "winogrande@1"])
def test_a_looped_model_scores_as_the_unrolled_one_does_in_stock_lm_eval(name: str, tmp_path: Path) -> None:
    base = name.partition("@")[0]
    write_rows(tmp_path, base)
    looped = evaluate(name, tmp_path, model(LOOP))
    plain = evaluate(name, tmp_path)
    unrolled = unrolled_model(model(), ORDER)
    files = {file.rpartition("/")[2].rpartition("_")[2]: tmp_path / f"{file}.jsonl" for file in FILES[base]}
    _, samples = stock(base, files, unrolled, TOKENIZER, tmp_path / "cache", shots=int("@" in name), limit=8, batch_size=5)
    by_item = {record.item: record for record in looped.records}
    for item, sample in zip(run_items(looped), samples, strict=True):
        assert by_item[item].extra["log_likelihoods"] == pytest.approx([answer[0] for (answer,) in sample["resps"]], abs=1e-4)
    moved = [
        abs(a - b)
        for one, other in zip(looped.records, plain.records, strict=True)
        for a, b in zip(one.extra["log_likelihoods"], other.extra["log_likelihoods"], strict=True)
    ]
    assert min(moved) > 1e-3
    assert (looped.header["loops"], looped.header["looped"], plain.header["looped"]) == ("1:3 x2", True, False)


def test_costs_count_every_token_that_is_read(tmp_path: Path) -> None:
    write_rows(tmp_path, "sciq")
    looped, plain = evaluate("sciq", tmp_path, model(LOOP)), evaluate("sciq", tmp_path)
    shape = read_shape(model().config.to_dict())
    first = next(record for record in plain.records if record.item == "test/0")
    question = f"\nQuestion: {row('sciq', 0)['question']}\nAnswer:"
    options = [row("sciq", 0)[name] for name in ("distractor1", "distractor2", "distractor3", "correct_answer")]
    assert first.prompt_tokens == sum(len(question) + 1 + len(option) - 1 for option in options)  # one token a character
    assert first.flops == first.prompt_tokens * cost_of(shape, ()).flops_per_token
    ratio = looped.header["flops_ratio"]
    assert ratio > 1.2 and looped.header["layer_pass_ratio"] == 8 / 6
    for one, other in zip(looped.records, plain.records, strict=True):
        assert one.flops == pytest.approx(ratio * other.flops) and one.generated_tokens == other.generated_tokens == 1


def test_options_that_differ_in_their_last_token_alone_are_read_once(tmp_path: Path) -> None:
    write_rows(tmp_path, "mmlu")
    record = evaluate("mmlu", tmp_path, limit=1).records[0]
    (item,) = loopwise.task_named("lm-eval:mmlu").load(tmp_path, 1)
    assert record.prompt_tokens == len(item.prompt) + 1 and record.extra["subtask"] == "abstract_algebra"


# Runs


def test_the_header_says_what_ran(tmp_path: Path) -> None:
    write_rows(tmp_path, "arc_challenge")
    run = evaluate("arc_challenge@2:acc_norm", tmp_path, model(LOOP), parity=None, out=tmp_path / "run")
    header = run.header
    assert sorted(read_run(tmp_path / "run").records, key=lambda record: record.key) == list(run.records)
    assert (header["task"], header["rule"], header["shots"], header["metric"]) == (
        "lm-eval:arc_challenge@2:acc_norm", "log-likelihood", 2, "acc_norm",
    )  # fmt: skip
    assert (header["items_from"], header["demonstrations_from"], header["chat_template"]) == ("test", "train", False)
    assert header["versions"]["lm-eval"] == lm_eval.__version__
    assert header["parity"]["ok"] and header["parity"]["new_tokens"] == 64 and len(set(header["parity"]["prompt_tokens"])) == 4
    assert header["num_items_cut"] == 0 and (tmp_path / "run" / "meter.json").is_file()
    for record in run.records:
        assert (record.rule, record.stop_reason, record.finished, record.text) == ("acc_norm", "log-likelihood", True, None)
        assert record.correct == (record.answer == record.gold) and len(record.extra["log_likelihoods"]) == 4


def test_a_model_with_a_chat_template_is_asked_without(tmp_path: Path) -> None:
    write_rows(tmp_path, "piqa")
    chatting = char_tokenizer()
    run = loopwise.evaluate(model(), chatting, "lm-eval:piqa", data=tmp_path, parity=tiny_parity(), batch_size=5)
    assert run.records[0].extra == evaluate("piqa", tmp_path).records[0].extra and run.header["chat_template"] is False


_KILLED = """
import os, signal, sys
from test_lm_eval_runs import LOOP, evaluate, model
from loopwise.records import RunWriter
written = 0
append = RunWriter.append
def counted(self, records):
    global written
    append(self, records)
    written += 1
    if written == 3:
        os.kill(os.getpid(), signal.SIGKILL)
RunWriter.append = counted
evaluate("hellaswag", sys.argv[1], model(LOOP), out=sys.argv[2], batch_size=2)
"""


def numbers(run: Run) -> list[Any]:
    return [(record.key, record.correct, record.extra, record.flops) for record in run.records]


def test_a_run_killed_with_9_goes_on_to_the_same_result(tmp_path: Path) -> None:
    write_rows(tmp_path, "hellaswag")
    here, out = Path(__file__).parent, tmp_path / "killed"
    environment = {**os.environ, "PYTHONPATH": f"{here}:{here.parent / 'src'}", "OMP_NUM_THREADS": "1"}
    ended = subprocess.run([sys.executable, "-c", _KILLED, str(tmp_path), str(out)], env=environment, capture_output=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()[-500:]
    there = (out / "records.jsonl").read_text().splitlines()
    assert len(there) == 3
    shares: list[float] = []
    resumed = evaluate("hellaswag", tmp_path, model(LOOP), out=out, batch_size=2, progress=shares.append)
    assert (out / "records.jsonl").read_text().splitlines()[:3] == there
    assert numbers(resumed) == numbers(evaluate("hellaswag", tmp_path, model(LOOP), batch_size=2))
    assert (
        shares == sorted(shares) and shares[-1] == 1.0 and len(shares) < 16
    )  # of the 16 batches, those of the items with a record are not read again


@pytest.mark.parametrize("num_there", [1, 3, 7])
def test_a_batch_that_finished_items_share_writes_none_of_them_again(num_there: int, tmp_path: Path) -> None:
    write_rows(tmp_path, "hellaswag")
    whole = evaluate("hellaswag", tmp_path, out=tmp_path / "run")
    file = tmp_path / "run" / "records.jsonl"
    file.write_text("".join(line + "\n" for line in file.read_text().splitlines()[:num_there]))
    assert numbers(evaluate("hellaswag", tmp_path, out=tmp_path / "run")) == numbers(whole)


def test_a_finished_run_reads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from loopwise.evaluation.lm_eval_model import LoopedLM

    write_rows(tmp_path, "sciq")
    first = evaluate("sciq", tmp_path, out=tmp_path / "run")
    monkeypatch.setattr(LoopedLM, "_model_call", lambda *_: pytest.fail("the model was called"))
    monkeypatch.setattr("loopwise.evaluation.log_likelihood.check_parity", lambda *_: pytest.fail("parity was checked"))
    for check in (tiny_parity(), None, lambda: pytest.fail("parity was checked")):
        assert evaluate("sciq", tmp_path, out=tmp_path / "run", parity=check) == first


@pytest.mark.parametrize(
    ("name", "changes", "field"),
    [
        ("arc_easy", {"batch_size": 4}, "batch_size"),
        ("arc_easy", {"limit": 4}, "items_hash"),
        ("arc_easy:acc_norm", {}, "metric"),
        ("arc_easy@1", {}, "demonstrations_from"),
        ("arc_easy", {"of": LOOP}, "arm"),
    ],
)
def test_another_run_in_the_folder_is_refused(name: str, changes: dict[str, Any], field: str, tmp_path: Path) -> None:
    write_rows(tmp_path, "arc_easy")
    evaluate("arc_easy", tmp_path, out=tmp_path / "run")
    of = model(changes.pop("of", None))
    with pytest.raises(RecordsError, match=f"holds a run with another {field}"):
        evaluate(name, tmp_path, of, out=tmp_path / "run", **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rule": DecodingRule(temperature=0.5)}, "temperature has no meaning"),
        ({"rule": DecodingRule(budget_forcing=True, reserve_tokens=1), "budget_tokens": 8}, "budget forcing has no meaning"),
        ({"rule": DecodingRule(repetition_stop=True)}, "repetition stop has no meaning"),
        ({"rule": DecodingRule(thinking=True)}, "thinking has no meaning"),
    ],
)
def test_settings_of_decoding_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    write_rows(tmp_path, "piqa")
    with pytest.raises(TaskError, match=f"lm-eval:piqa is answered by log-likelihoods and decodes nothing: {message}"):
        evaluate("piqa", tmp_path, out=tmp_path / "run", **changes)
    assert not (tmp_path / "run").exists()


def test_a_failed_parity_check_stops_the_run_before_it_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Parity:
        raise ParityError("cached decoding differs")

    write_rows(tmp_path, "piqa")
    monkeypatch.setattr("loopwise.evaluation.log_likelihood.check_parity", fails)
    with pytest.raises(ParityError):
        evaluate("piqa", tmp_path, parity=None, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_continuation_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    short = model()
    short.config.max_position_embeddings = 8
    write_rows(tmp_path, "arc_easy")
    with pytest.raises(TaskError, match=r"item q0: \d+ tokens of context and 10 of continuation, in a model of 8 positions"):
        evaluate("arc_easy", tmp_path, short)


def test_model_and_tokenizer_are_left_as_they_were(tmp_path: Path) -> None:
    write_rows(tmp_path, "piqa")
    of, tokenizer = model(LOOP), char_tokenizer(None)
    tokenizer.pad_token = None
    of.train()
    weights = {name: (parameter, parameter.clone()) for name, parameter in of.named_parameters()}
    loopwise.evaluate(of, tokenizer, "lm-eval:piqa", data=tmp_path, parity=tiny_parity())
    assert tokenizer.pad_token is None and all(module.training for module in of.modules())
    for name, parameter in of.named_parameters():
        assert parameter is weights[name][0] and torch.equal(parameter, weights[name][1]) and not parameter.is_inference()


def test_a_tokenizer_without_a_beginning_or_an_end_is_refused(tmp_path: Path) -> None:
    write_rows(tmp_path, "piqa")
    bare = char_tokenizer(None)
    bare.eos_token = bare.bos_token = None
    with pytest.raises(ValueError, match="lm-eval needs a tokenizer with a token that begins or ends a text"):
        loopwise.evaluate(model(), bare, "lm-eval:piqa", data=tmp_path, parity=tiny_parity())


def test_our_class_stands_in_lm_evals_own_loop_and_refuses_to_write(tmp_path: Path) -> None:
    from loopwise.evaluation.lm_eval_model import LoopedLM

    write_rows(tmp_path, "sciq")
    run = evaluate("sciq", tmp_path, model(LOOP))
    from lm_eval.tasks import TaskManager
    from lm_eval.tasks import __file__ as tasks_file

    manager = TaskManager(include_path=str(Path(tasks_file).parent / "sciq"), include_defaults=False)
    data = {"data_files": {"test": str(tmp_path / "sciq/test.jsonl")}, "cache_dir": str(tmp_path / "cache")}
    source = {
        "task": "sciq", "dataset_path": "json", "dataset_kwargs": data, "training_split": None, "validation_split": None,
    }  # fmt: skip
    lm = LoopedLM(model(LOOP), TOKENIZER, batch_size=5)
    tasks = list(manager.load({"group": "g", "task": [source]})["tasks"].values())
    found = lm_eval.simple_evaluate(model=lm, tasks=tasks, bootstrap_iters=0, task_manager=manager)
    assert_equal_to_stock(run, found["results"]["sciq"], sorted(found["samples"]["sciq"], key=lambda one: one["doc_id"]), "acc")
    with pytest.raises(ValueError, match="answers in words are decoded by loopwise itself"):
        lm.generate_until([])


# Judged


def test_runs_are_judged_by_the_two_tests(tmp_path: Path) -> None:
    looped, twin = [], []
    for name in ("arc_easy", "hellaswag@1"):
        write_rows(tmp_path, name.partition("@")[0])
        looped.append(evaluate(name, tmp_path, model(LOOP), out=tmp_path / f"looped-{name}"))
        twin.append(evaluate(name, tmp_path, out=tmp_path / f"twin-{name}"))
    verdict = judge(looped=[run.source for run in looped], twin=[run.source for run in twin])
    assert verdict.tasks == ("lm-eval:arc_easy", "lm-eval:hellaswag@1") and verdict.num_items == 16
    percent = [sum(record.correct for record in run.records) / 8 * 100 for run in (*looped, *twin)]
    assert verdict.equal_parameters.comparison.delta_points == pytest.approx((percent[0] + percent[1] - percent[2] - percent[3]) / 2)
    assert verdict.cost_ratio == 8 / 6 and verdict.training_free and verdict.deciding_rule == "plain"
    assert verdict.equal_flops is not None or verdict.equal_flops_reason


def saved(folder: Path) -> Path:
    model().save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    return folder


def test_a_trial_of_log_likelihoods(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model")
    for name in ("arc_easy", "lambada_openai"):
        write_rows(tmp_path, name)
    settings = TrialSettings(data=tmp_path, limit=4)
    tasks = ("lm-eval:arc_easy@1", "lm-eval:lambada_openai")
    verdict = trial(folder, loops=LOOP, tasks=tasks, out=tmp_path / "trial", settings=settings)
    runs = sorted(file.parent.relative_to(tmp_path / "trial") for file in (tmp_path / "trial").rglob("header.json"))
    names = ("lm-eval-arc_easy@1", "lm-eval-lambada_openai")
    assert runs == [Path("runs") / f"{side}-plain-1" / name for side in ("looped", "twin") for name in names]
    assert verdict.num_items == 8 and verdict.deciding_rule == "plain" and (tmp_path / "trial" / "report.html").exists()


@pytest.mark.parametrize(
    ("tasks", "changes", "message"),
    [
        (("lm-eval:piqa", "ladder"), {}, "lm-eval:piqa is answered by log-likelihoods and ladder in words"),
        (("lm-eval:piqa",), {"budgets": (8,)}, "budgets would do nothing"),
        (("lm-eval:piqa",), {"vote_samples": 4}, "votes would do nothing"),
        (("lm-eval:piqa",), {"thinking": True}, "thinking would do nothing"),
        (("lm-eval:piqa",), {"rules": ("plain", "repetition-stop")}, "the rule repetition-stop would do nothing"),
        (("lm-eval:piqa",), {"rules": ("budget-forcing",)}, "rules without plain would do nothing"),
    ],
)
def test_trials_that_would_decode_are_refused(tasks: tuple[str, ...], changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = saved(tmp_path / "model")
    write_rows(tmp_path, "piqa")
    budgets = changes.pop("budgets", ())
    settings = TrialSettings(data=None if "ladder" in tasks else tmp_path, limit=2, **changes)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(TrialError, match=message):
        patch.setenv("LOOPWISE_DATA", str(tmp_path))
        trial(folder, loops=LOOP, tasks=tasks, budgets=budgets, out=tmp_path / "trial", settings=settings)
    assert not (tmp_path / "trial").exists()


# The command


def command(*args: str) -> None:
    from loopwise.cli import main

    main(["evaluate", *args])


def test_a_suite_runs_each_of_its_tasks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = saved(tmp_path / "model")
    for name in ("hellaswag", "arc_easy", "arc_challenge", "lambada_openai"):
        write_rows(tmp_path, name)
    given = (str(folder), "--loops", LOOP, "--task", "free-loop-scratch", "--data", str(tmp_path), "--limit", "3")
    command(*given, "--out", str(tmp_path / "suite"))
    said = capsys.readouterr().out
    assert said.startswith("free-loop-scratch (no-free-loop, Table 6 and appendix C.4), ") and "layer passes 1.333x" in said
    names = SUITES["free-loop-scratch"].names
    found = {name: read_run(tmp_path / "suite" / name.replace(":", "-")) for name in names}
    assert all(len(run.records) == 3 and run.header["task"] == name and run.header["loops"] == LOOP for name, run in found.items())
    percents = [100 * sum(record.correct for record in run.records) / 3 for run in found.values()]
    assert f"{sum(percents) / 4:.2f}" in next(line for line in said.splitlines() if line.startswith("mean"))
    command(*given, "--out", str(tmp_path / "suite"), "--json")
    shown = json.loads(capsys.readouterr().out)
    assert [shown["tasks"][name]["accuracy_percent"] for name in names] == percents


def test_a_suite_answers_nothing_where_one_of_its_prompts_is_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gsm8k").mkdir()
    (tmp_path / "gsm8k" / "test.jsonl").write_text(json.dumps({"question": "word " * 9000, "answer": "1 #### 1"}))
    write_rows(tmp_path, "arc_challenge")
    tasks = tuple(SuiteTask(task=name) for name in ("ladder", "arc_challenge", "gsm8k"))
    monkeypatch.setitem(SUITES, "short", Suite(source="here", tasks=tasks))
    given = (str(saved(tmp_path / "model")), "--task", "short", "--data", str(tmp_path), "--budget", "9", "--out", str(tmp_path / "runs"))
    with pytest.raises(SystemExit):
        command(*given, "--limit", "1")
    error = capsys.readouterr().err.splitlines()[-1]
    assert (
        error.startswith("loopwise evaluate: gsm8k: prompt 0 has ")
        and "and with the budget of 9 needs" in error
        and not (tmp_path / "runs").exists()
    )
    monkeypatch.setitem(SUITES, "short", Suite(source="here", tasks=tasks[:2]))
    command(*given, "--limit", "1")
    assert [read_run(tmp_path / "runs" / name).header["budget_tokens"] for name in ("ladder", "arc_challenge")] == [9, 1]


@pytest.mark.parametrize(
    ("task", "more", "message"),
    [
        (
            "arc_challenge",
            ("--budget", "8"),
            "--budget has no meaning with --task arc_challenge, which is answered by letters; leave it out",
        ),
        ("arc_challenge", ("--samples", "3"), "--samples has no meaning with --task arc_challenge"),
        ("arc_challenge", ("--budget-forcing",), "--budget-forcing has no meaning with --task arc_challenge"),
        ("arloop-controlled", ("--budget", "8"), "--budget has no meaning with --task arloop-controlled"),
        ("lm-eval:piqa", ("--thinking",), "--thinking has no meaning with --task lm-eval:piqa, which decodes nothing; leave it out"),
        ("lm-eval:piqa", ("--temperature", "0.0"), "--temperature has no meaning"),
        ("arloop-large", (), "mbpp runs the code that a model writes"),
        ("lm-eval:mmlu", (), "holds no mmlu/test.jsonl"),
    ],
)
def test_the_command_refuses_in_one_line(
    task: str, more: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        command(str(tmp_path / "no-model"), "--task", task, "--data", str(tmp_path), "--out", str(tmp_path / "run"), *more)
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


# Real rows


@pytest.fixture(scope="module")
def smollm2() -> loopwise.Loaded:
    try:
        gguf_file()
    except ModelError as error:
        pytest.skip(str(error))
    return load("smollm2", loops="none", dtype="fp32")


def head(source: Path, target: Path, count: int, **more: list[Any]) -> Path:
    """The first rows of a real file, with further columns."""
    text = (gzip.decompress(source.read_bytes()) if source.suffix == ".gz" else source.read_bytes()).decode()
    rows = [json.loads(line) for line in islice(text.split("\n"), count)]
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("".join(json.dumps(one | {name: of[n] for name, of in more.items()}) + "\n" for n, one in enumerate(rows)))
    return target


REAL = {
    "arc_easy": ("arc_easy/validation.jsonl", "validation"),
    "arc_challenge@2:acc_norm": ("arc_challenge/validation.jsonl", "validation"),
    "hellaswag@1": ("hellaswag/validation.jsonl.gz", "validation"),
    "winogrande@2": ("winogrande/validation.jsonl", "validation"),
    "openbookqa": ("openbookqa/validation.jsonl", "validation"),
    "piqa": ("piqa/valid.jsonl", "validation"),
    "sciq": ("sciq/validation.jsonl", "validation"),
    "lambada_openai": ("lambada/openai_test.jsonl", "test"),
}
"""Tasks and the files whose rows are as on the hub."""


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_smollm2_on_real_rows_equals_stock_lm_eval_and_loops(name: str, smollm2: loopwise.Loaded, tmp_path: Path) -> None:
    base = name.partition("@")[0]
    source, split = REAL[name]
    more: dict[str, list[Any]] = {}
    if base == "piqa":
        more["label"] = [int(label) for label in (data_dir() / "piqa/valid-labels.lst").read_text().split()]
    stem = "openai_test" if base == "lambada_openai" else split
    file = head(data_dir() / source, tmp_path / LIKELIHOODS[base].source.folder / f"{stem}.jsonl", 6, **more)
    task = loopwise.task_named(f"lm-eval:{name}")
    settings: dict[str, Any] = {"data": tmp_path, "limit": 4, "batch_size": 4, "parity": tiny_parity()}
    run = loopwise.evaluate(smollm2.model, smollm2.tokenizer, task, **settings)
    shots, metric = task.facts["shots"], task.facts["metric"]
    results, samples = stock(base, {split: file}, smollm2.model, smollm2.tokenizer, tmp_path / "cache", shots=shots, limit=4, batch_size=4)
    items = [item.name for item in task.load(tmp_path, 4)]
    by_item = {record.item: record for record in run.records}
    for item, sample in zip(items, samples, strict=True):
        assert by_item[item].extra["log_likelihoods"] == [answer[0] for (answer,) in sample["resps"]]
        assert by_item[item].correct == (sample[metric] == 1)
    assert sum(record.correct for record in run.records) / 4 == pytest.approx(results[f"{metric},none"])
    loopwise.insert(smollm2.model, "12:14 x2")
    try:
        looped = loopwise.evaluate(smollm2.model, smollm2.tokenizer, task, **settings)
    finally:
        loopwise.remove(smollm2.model)
    for one, other in zip(looped.records, run.records, strict=True):
        assert one.extra["log_likelihoods"] != other.extra["log_likelihoods"] and one.flops > other.flops
