"""Results of other programs: lm-eval, lighteval and CSV give the same verdict as our own lines; what is bad is said in one line."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from loopwise.cli import main
from loopwise.protocol import Bootstrap, TrialError, judge
from loopwise.records import RecordsError, ResultsChoice, read_results, with_cost, with_costs

QUICK = Bootstrap(resamples=500)
DATE = "2026-03-01T10-11-12.131415"
LOOPED, TWIN = [True] * 130 + [False] * 70, [False] * 40 + [True] * 110 + [False] * 50


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def lm_eval(folder: Path, right: list[bool], *, task: str = "gsm8k", filters: tuple[str, ...] = ("strict-match",), **more: Any) -> Path:
    """A file as ``evaluation_tracker.save_results_samples`` writes it: one line a document and filter."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"samples_{task}_{DATE}.jsonl"
    lines = []
    for name in filters:
        for n, one in enumerate(right):
            sample = {
                "doc_id": n,
                "doc": {"question": f"question {n}", "answer": str(n)},
                "target": str(n),
                "arguments": {"gen_args_0": {"arg_0": f"Q: {n}", "arg_1": {"until": ["\n"]}}},
                "resps": [["some text"]],
                "filtered_resps": [str(n)],
                "filter": name,
                "metrics": ["exact_match"],
                "doc_hash": digest(f"doc {n}"),
                "prompt_hash": digest(f"prompt {n}"),
                "target_hash": digest(str(n)),
                "exact_match": float(one),
            }
            lines.append(json.dumps(sample | more))
    file.write_text("\n".join(lines) + "\n")
    return file


def lm_eval_results(folder: Path, effective: int, **config: Any) -> None:
    values = {"n-samples": {"gsm8k": {"original": 1319, "effective": effective}}, "versions": {"gsm8k": 3.0}, "config": config}
    (folder / f"results_{DATE}.json").write_text(json.dumps(values))


def lighteval_row(n: int, metric: dict[str, Any], tokens: int = 0, **more: Any) -> dict[str, Any]:
    """A row with every field that lighteval 0.13.0 writes; ``more`` changes fields of the answer."""
    written = {"text": ["x"], "output_tokens": [list(range(100, 100 + tokens))], "text_post_processed": ["x"]}
    scored = {"output_tokens": [[7, 8], [7, 9]], "logprobs": [-1.5, -2.5], "argmax_logits_eq_gold": [False, False]}
    empty: dict[str, Any] = {"text": [], "text_post_processed": None, "logprobs": [], "argmax_logits_eq_gold": []}
    doc = {
        "query": f"question {n}",
        "choices": [str(n), "other"],
        "gold_index": 0,
        "instruction": None,
        "images": None,
        "specific": None,
        "unconditioned_query": None,
        "original_query": None,
        "id": str(2 * n),  # skipped documents leave gaps
        "task_name": "gsm8k|0",
        "fewshot_samples": [],
        "sampling_methods": ["GENERATIVE"] if tokens else ["LOGPROBS"],
        "fewshot_sorting_class": None,
        "generation_size": 256,
        "stop_sequences": ["Question:"],
        "use_logits": False,
        "num_samples": 1,
        "generation_grammar": None,
    }
    answer = {"input": None, "input_tokens": [1, 2, 3], "reasonings": [], "logits": None, "unconditioned_logprobs": None}
    answer |= empty | (written if tokens else scored) | {"truncated_tokens_count": 0, "padded_tokens_count": 0} | more
    return {"doc": doc, "metric": metric, "model_response": answer}


def lighteval(
    root: Path, right: list[bool], *, tokens: int = 0, metric: str = "em", effective: int = -1, rows: list[dict[str, Any]] | None = None
) -> Path:
    """A file as ``EvaluationTracker.save_details`` writes it, with the run's results beside."""
    parquet = pytest.importorskip("pyarrow.parquet", reason="lighteval's files are Parquet")
    import pyarrow

    rows = [lighteval_row(n, {metric: int(one)}, tokens) for n, one in enumerate(right)] if rows is None else rows
    folder = root / "details" / "org" / "model" / DATE
    folder.mkdir(parents=True)
    file = folder / f"details_gsm8k|0_{DATE}.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    lighteval_results(root, effective=effective)
    return file


def lighteval_results(root: Path, *, effective: int = -1, version: int = 0, batch_size: int | None = None) -> None:
    """Since lighteval 0.11 documents are counted no more: -1."""
    results = root / "results" / "org" / "model"
    results.mkdir(parents=True, exist_ok=True)
    config = {"name": "gsm8k", "version": version, "original_num_docs": -1, "effective_num_docs": effective}
    general = {"max_samples": None, "model_config": {"model_name": "org/model", "batch_size": batch_size}, "model_name": "org/model"}
    values = {"config_general": general, "results": {"gsm8k|0": {"em": 0.5}}, "versions": {}, "config_tasks": {"gsm8k|0": config}}
    (results / f"results_{DATE}.json").write_text(json.dumps(values))


def plain(file: Path, right: list[bool], **more: Any) -> Path:
    rows = [{"task": "gsm8k", "item": str(n), "seed": 0, "sample": 0, "correct": one} | more for n, one in enumerate(right)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def csv_file(file: Path, right: list[bool], heading: str = "task,item,seed,sample,correct", row: str = "gsm8k,{n},0,0,{right}") -> Path:
    file.write_text("\n".join([heading, *(row.format(n=n, right=str(one).lower()) for n, one in enumerate(right))]) + "\n")
    return file


def said(error: type[Exception], message: str, act: Any) -> None:
    with pytest.raises(error, match=message) as caught:
        act()
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 420


# --- the same answers, in four formats --------------------------------------------------------------------------------------


def test_four_formats_give_one_verdict(tmp_path: Path) -> None:
    pairs = {
        "plain": (plain(tmp_path / "a.jsonl", LOOPED), plain(tmp_path / "b.jsonl", TWIN)),
        "csv": (csv_file(tmp_path / "a.csv", LOOPED), csv_file(tmp_path / "b.csv", TWIN)),
        "lm-eval": (lm_eval(tmp_path / "l", LOOPED), lm_eval(tmp_path / "t", TWIN)),
        "lighteval": (lighteval(tmp_path / "le", LOOPED), lighteval(tmp_path / "te", TWIN)),
    }
    found = {name: judge(looped=looped, twin=twin, bootstrap=QUICK) for name, (looped, twin) in pairs.items()}
    for verdict in found.values():
        first, expected = verdict.equal_parameters, found["plain"].equal_parameters
        assert (first.delta_points, first.num_eligible) == (pytest.approx(10.0), 1)
        assert first.comparison.tasks[0].discordant == expected.comparison.tasks[0].discordant == (40, 20)
        assert first.comparison.tasks[0].mcnemar_p == expected.comparison.tasks[0].mcnemar_p
        assert verdict.equal_flops is None and "--cost" in (verdict.equal_flops_reason or "")
    assert found["lm-eval"].tasks == ("gsm8k",) and found["lighteval"].tasks == ("gsm8k|0",)


def test_a_folder_of_files_is_one_run_and_an_unlooped_arm(tmp_path: Path) -> None:
    for name, right in (("looped", LOOPED), ("twin", TWIN), ("longer", [True] * 120 + [False] * 80)):
        for task in ("gsm8k", "arc_easy"):
            lm_eval(tmp_path / name, right, task=task)
        (tmp_path / name / "costs.csv").write_text(
            "task,item,generated_tokens\n" + "".join(f"{task},{n},{40 + n}\n" for task in ("gsm8k", "arc_easy") for n in range(200))
        )
    sides = {name: read_results(tmp_path / name) for name in ("looped", "twin", "longer")}
    assert {record.task for record in sides["looped"].records} == {"gsm8k", "arc_easy"}
    verdict = judge(looped=sides["looped"], twin=sides["twin"], unlooped=sides["longer"], cost_ratio=1.25, bootstrap=QUICK)
    assert verdict.equal_flops is not None and verdict.equal_flops.comparator == "longer"
    assert verdict.equal_flops.measure == "layer-passes"


def test_lighteval_tells_the_tokens_of_generated_answers_and_of_no_others(tmp_path: Path) -> None:
    generated = read_results(lighteval(tmp_path / "g", LOOPED, tokens=17)).records
    assert {(record.generated_tokens, record.prompt_tokens) for record in generated} == {(17, 3)}
    assert {record.generated_tokens for record in read_results(lighteval(tmp_path / "s", LOOPED)).records} == {None}


def test_lightevals_padding_is_no_token_of_a_prompt_or_an_answer(tmp_path: Path) -> None:
    """Batches are filled up: prompts at their beginning, answers at their end, both in what lighteval calls their tokens."""
    padded = [
        lighteval_row(0, {"em": 1}, 4),
        lighteval_row(1, {"em": 0}, 4, input_tokens=[2, 1, 2, 3], padded_tokens_count=1, output_tokens=[[9, 2, 2, 2]]),
        lighteval_row(2, {"em": 0}, 4, output_tokens=[[9, 5, 7, 2]]),
    ]
    found = read_results(lighteval(tmp_path / "p", [], rows=padded)).records
    assert [(one.prompt_tokens, one.generated_tokens) for one in found] == [(3, 4), (3, 2), (3, 4)], "2 pads, and ends answers"
    assert len({one.extra["prompt_hash"] for one in found}) == 1
    loop = [lighteval_row(0, {"em": 1}, 4), lighteval_row(1, {"em": 0}, 4, output_tokens=[[9, 5, 5, 5]])]
    unknown = lighteval(tmp_path / "u", [], rows=loop)  # is 5 the padding, or was it said three times?
    assert [one.generated_tokens for one in read_results(unknown).records] == [None, None]
    lighteval_results(tmp_path / "u", batch_size=1)
    assert [one.generated_tokens for one in read_results(unknown).records] == [4, 4]
    cut = [
        *padded,
        lighteval_row(3, {"em": 0}, 4, output_tokens=[[9, 5, 7, -1]]),
        lighteval_row(4, {"em": 0}, 4, output_tokens=[[9, 2, 2, -1]]),
    ]
    counts = [one.generated_tokens for one in read_results(lighteval(tmp_path / "x", [], rows=cut)).records]
    assert counts == [4, 2, 4, 3, 2], "only 2 ends an answer, -1 none"
    gathered = [lighteval_row(0, {"acc": 1}, input_tokens=[1, 2, 3, -1]), lighteval_row(1, {"acc": 1})]
    prompts = {one.extra["prompt_hash"] for one in read_results(lighteval(tmp_path / "g", [], rows=gathered)).records}
    assert len(prompts) == 1


def test_a_task_that_is_written_and_scored_has_two_rows_for_each_document(tmp_path: Path) -> None:
    def both(n: int) -> list[dict[str, Any]]:
        rows = [lighteval_row(n, {"em": n % 2, "acc": None}, 5), lighteval_row(n, {"em": None, "acc": 1 - n % 2})]
        for row in rows:
            row["doc"]["sampling_methods"] = ["GENERATIVE", "LOGPROBS"]
        return rows

    ones, others = zip(*(both(n) for n in range(6)), strict=True)
    file = lighteval(tmp_path / "b", [], rows=[*ones, *others])
    said(RecordsError, "em and acc all say right or wrong; choose one with --metric", lambda: read_results(file))
    written, scored = (read_results(file, ResultsChoice(metrics=(name,))).records for name in ("em", "acc"))
    assert [(one.item, one.correct, one.generated_tokens) for one in written[:2]] == [("0", False, 5), ("2", True, 5)]
    assert [(one.item, one.correct, one.generated_tokens) for one in scored[:2]] == [("0", True, None), ("2", False, None)]
    twice = lighteval(tmp_path / "t", [], rows=[*ones, *ones, *others])
    said(RecordsError, "document '0' of gsm8k.0 is there twice", lambda: read_results(twice, ResultsChoice(metrics=("em",))))
    cut = lighteval(tmp_path / "c", [], rows=[*ones, *others[:-1]])
    said(RecordsError, "acc of item '10' is missing", lambda: read_results(cut, ResultsChoice(metrics=("acc",))))


def test_lightevals_prompts_and_versions_are_compared(tmp_path: Path) -> None:
    """Another number of examples is another task; under one name of yours it is another prompt."""
    looped, twin = lighteval(tmp_path / "l", LOOPED), lighteval(tmp_path / "t", TWIN)
    rows = [lighteval_row(n, {"em": int(one)}, input_tokens=[5, 6, 1, 2, 3]) for n, one in enumerate(TWIN)]
    shots = lighteval(tmp_path / "few", [], rows=rows)
    said(TrialError, "item '0' of gsm8k.0 was asked with another prompt", lambda: judge(looped=looped, twin=shots))
    for row in rows:
        row["doc"]["task_name"] = "gsm8k|2"
    named = lighteval(tmp_path / "named", [], rows=rows)
    said(TrialError, "different tasks: looped has gsm8k.0, twin has gsm8k.2", lambda: judge(looped=looped, twin=named))
    lighteval_results(tmp_path / "t", version=1)
    said(TrialError, "gsm8k.0 is version 0 in looped, 1 in twin", lambda: judge(looped=looped, twin=twin))
    rows = [lighteval_row(n, {"em": int(one)}) for n, one in enumerate(TWIN)]
    rows[3]["doc"]["query"] = "another question"
    said(
        TrialError,
        "item '6' of gsm8k.0 has the reference answer",
        lambda: judge(looped=looped, twin=lighteval(tmp_path / "q", [], rows=rows)),
    )


def test_csv_cells_are_typed_and_empty_ones_are_not_known(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("item;correct;generated_tokens;finished;budget\n0;yes;12;true;64\n1;0;;;64\n")
    first, second = read_results(file, ResultsChoice(task="t", seed=3, arm="mine")).records
    assert (first.task, first.item, first.seed, first.sample, first.correct) == ("t", "0", 3, 0, True)
    assert (first.generated_tokens, first.finished, first.extra) == (12, True, {"budget": 64, "arm": "mine"})
    assert (second.correct, second.generated_tokens, second.finished) == (False, None, None)


def test_two_seeds_of_lm_eval_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [lm_eval(tmp_path / name, right) for name, right in (("l0", LOOPED), ("l1", LOOPED[::-1]), ("t0", TWIN), ("t1", TWIN[::-1]))]
    args = ["judge", "--looped", f"@0={files[0]}", f"@1={files[1]}", "--twin", f"@0={files[2]}", f"@1={files[3]}", "--resamples", "500"]
    main([*args, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["seeds"] == [0, 1] and [one["points"] for one in found["equal_parameters"]["comparison"]["seed_deltas"]] == [10.0, 10.0]


# --- costs ------------------------------------------------------------------------------------------------------------------


def test_costs_by_number_by_file_and_beside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    looped, twin = lm_eval(tmp_path / "l", LOOPED), lm_eval(tmp_path / "t", TWIN)
    longer = lm_eval(tmp_path / "u", [True] * 115 + [False] * 85)
    table = tmp_path / "costs.csv"
    table.write_text("item,flops\n" + "".join(f"{n},{1.0 + n % 2}\n" for n in range(200)))
    args = ["judge", "--looped", str(looped), "--twin", str(twin), "--unlooped", f"longer={longer}", "--resamples", "500", "--json"]
    main([*args, "--cost", "looped=1.6", "twin=1", f"longer={table}"])
    found = json.loads(capsys.readouterr().out)
    ratios = {row["other"]: row["cost_ratio"] for row in found["equal_flops"]["rows"] if row["role"] in ("candidate", "costlier")}
    assert ratios == {"twin": pytest.approx(1 / 1.6), "longer": pytest.approx(1.5 / 1.6)}
    assert found["deciding_measure"] == "flops" and found["equal_flops"]["comparator"] == "longer"
    table.rename(longer.with_name(longer.name + ".costs.csv"))
    main([*args, "--cost", "looped=1.6", "twin=1"])
    assert json.loads(capsys.readouterr().out)["equal_flops"] == found["equal_flops"]


@pytest.mark.parametrize(
    ("cost", "message"),
    [
        ("twin", "give NAME=NUMBER or NAME=FILE.csv"),
        ("twin=-1", "a cost of -1.0; give a number above 0"),
        ("twin=nan", "a cost of nan"),
        ("base=2", "nothing is called 'base'; costs can be given for looped, twin"),
        ("twin=none.csv", "none.csv: no such file"),
    ],
)
def test_costs_that_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str], cost: str, message: str) -> None:
    looped, twin = plain(tmp_path / "l.jsonl", LOOPED), plain(tmp_path / "t.jsonl", TWIN)
    with pytest.raises(SystemExit):
        main(["judge", "--looped", str(looped), "--twin", str(twin), "--cost", cost])
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("item,flops\n0,1\n", "item '1' of .* is missing; give the cost of every answer"),
        ("item,flops\n0,1\n1,2\n2,3\n", "item '2' is not in .*; are these its costs"),
        ("item,flops\n0,1\n0,1\n1,1\n", "line 3: item '0' is there twice"),
        ("item,flops\n0,1\n1,much\n", "line 3: flops is 'much'; give a number"),
        ("item,flops\n0,1\n1,\n", "line 3: flops is ''; give a number"),
        ("item,flops\n0,1\n1,-2\n", "line 3: flops is -2.0; give a number from 0"),
        ("item,flops\n0,1\n1,nan\n", "line 3: flops is nan"),
        ("item,flops\n0,1\n1,0\n", "line 3: flops is 0, and no answer costs nothing; give what it cost, or leave it out"),
        ("item,joules\n0,1\n1,2\n", "needs a column item and one of generated_tokens, flops"),
        ("item,generated_tokens\n0,1\n1,2\n", "holds generated_tokens of its own"),
        ("", "holds no records"),
    ],
)
def test_bad_tables_of_costs(tmp_path: Path, text: str, message: str) -> None:
    run = read_results(plain(tmp_path / "a.jsonl", [True, False], generated_tokens=5))
    (tmp_path / "c.csv").write_text(text)
    said(RecordsError, message, lambda: with_costs(run, tmp_path / "c.csv"))


def test_a_cost_never_replaces_one_that_is_known(tmp_path: Path) -> None:
    run = read_results(plain(tmp_path / "a.jsonl", [True], flops=3.0))
    said(RecordsError, "holds flops of its own", lambda: with_cost(run, 2.0, "--cost twin"))


def test_an_arm_whose_costs_are_all_0_was_not_measured_and_is_not_the_cheapest(tmp_path: Path) -> None:
    looped, twin = (plain(tmp_path / f"{name}.jsonl", right, generated_tokens=100) for name, right in (("l", LOOPED), ("t", TWIN)))
    free = plain(tmp_path / "free.jsonl", [True] * 200, generated_tokens=0)
    verdict = judge(looped=looped, twin=twin, unlooped=free, cost_ratio=1.25, bootstrap=QUICK)
    assert verdict.equal_flops is None and "its own cost is not known (layer-passes)" in (verdict.equal_flops_reason or "")
    dear = plain(tmp_path / "dear.jsonl", [False] * 200, generated_tokens=0)
    verdict = judge(looped=looped, twin=twin, unlooped=dear, cost_ratio=1.25, bootstrap=QUICK)
    assert verdict.equal_flops is not None and verdict.equal_flops.comparator == "twin"
    row = next(one for one in verdict.equal_flops.rows if one.other == "dear")
    assert (row.eligible, row.cost_ratio, row.reason) == (False, None, "cost unknown: generated_tokens is 0 in all of its records")
    (tmp_path / "zero.jsonl").write_text(json.dumps({"task": "t", "item": "0", "seed": 0, "sample": 0, "correct": True, "flops": 0}))
    said(RecordsError, "line 1: flops is 0, and no answer costs nothing", lambda: read_results(tmp_path / "zero.jsonl"))


# --- what must be chosen ------------------------------------------------------------------------------------------------------


def test_filters_and_metrics_are_chosen_not_guessed(tmp_path: Path) -> None:
    file = lm_eval(tmp_path, LOOPED, filters=("strict-match", "flexible-extract"))
    said(RecordsError, "read by strict-match and flexible-extract; choose one with --filter", lambda: read_results(file))
    said(RecordsError, "has no filter loose; its filters are strict-match", lambda: read_results(file, ResultsChoice(filters=("loose",))))
    found = read_results(file, ResultsChoice(filters=("none", "flexible-extract"))).records
    assert len(found) == 200 and found[0].rule == "exact_match, flexible-extract"
    two = lm_eval(tmp_path / "two", LOOPED, metrics=["acc", "acc_norm", "f1"], acc=1.0, acc_norm=0.0, f1=0.5)
    said(RecordsError, "acc and acc_norm all say right or wrong; choose one with --metric", lambda: read_results(two))
    assert not any(record.correct for record in read_results(two, ResultsChoice(metrics=("acc_norm",))).records)
    said(
        RecordsError,
        r"f1 of item '0' is 0.5, not right or wrong; .*others: acc, acc_norm",
        lambda: read_results(two, ResultsChoice(metrics=("f1",))),
    )
    said(RecordsError, "no metric bleu; its metrics are acc", lambda: read_results(two, ResultsChoice(metrics=("bleu",))))
    said(RecordsError, "ppl of item '0' is nan", lambda: read_results(lm_eval(tmp_path / "p", LOOPED, metrics=["ppl"], ppl=float("nan"))))


def test_a_renamed_file_needs_its_task(tmp_path: Path) -> None:
    file = lm_eval(tmp_path, LOOPED).rename(tmp_path / "mine.jsonl")
    said(RecordsError, "its name holds no task; .*--task-name", lambda: read_results(file))
    assert read_results(file, ResultsChoice(task="gsm8k")).records[0].task == "gsm8k"
    said(RecordsError, "has no column 'task'", lambda: read_results(csv_file(tmp_path / "a.csv", LOOPED, "item,correct", "{n},{right}")))


# --- runs that do not cover their items, and pairs that are none ---------------------------------------------------------------


def test_a_run_must_cover_all_of_its_items(tmp_path: Path) -> None:
    file = lm_eval(tmp_path, LOOPED)
    lm_eval_results(tmp_path, 200, model_num_parameters=1000)
    extra = read_results(file).records[0].extra
    assert (extra["task_version"], extra["num_parameters"]) == ("3.0", 1000)
    lm_eval_results(tmp_path, 1319)
    said(RecordsError, "holds 200 of the 1319 items that were evaluated; a run must cover all of", lambda: read_results(file))
    lines = lm_eval(tmp_path / "gap", LOOPED).read_text().splitlines()
    gap = tmp_path / "gap" / f"samples_gsm8k_{DATE}.jsonl"
    gap.write_text("\n".join(lines[:7] + lines[8:]))
    said(RecordsError, "document 7 of 0 to 199 is missing", lambda: read_results(gap))
    lm_eval_results(gap.parent, 199)  # lm-eval itself says that these were all that it was asked for
    assert len(read_results(gap).records) == 199
    said(
        RecordsError,
        "holds 200 of the 300 items of gsm8k|0 that were evaluated".replace("|", r"\|"),
        lambda: read_results(lighteval(tmp_path / "x", LOOPED, effective=300)),
    )


def test_another_name_for_a_task_does_not_hide_what_is_missing(tmp_path: Path) -> None:
    file, mine = lm_eval(tmp_path, LOOPED), ResultsChoice(task="mine")
    lm_eval_results(tmp_path, 200)
    first = read_results(file, mine).records[0]
    assert (first.task, first.extra["task_version"]) == ("mine", "3.0")
    lm_eval_results(tmp_path, 1319)
    said(RecordsError, "holds 200 of the 1319 items", lambda: read_results(file, mine))
    short = lighteval(tmp_path / "x", LOOPED, effective=300)
    said(RecordsError, "holds 200 of the 300 items", lambda: read_results(short, mine))


def test_a_csv_file_takes_no_choice_that_it_would_not_follow(tmp_path: Path) -> None:
    file = csv_file(tmp_path / "a.csv", LOOPED)
    said(RecordsError, "leave --metric and --filter out", lambda: read_results(file, ResultsChoice(metrics=("acc",))))
    said(RecordsError, "leave --task-name out", lambda: read_results(file, ResultsChoice(task="mine")))


def test_two_items_can_show_no_gain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    looped, twin = plain(tmp_path / "l.jsonl", [True, False]), plain(tmp_path / "t.jsonl", [False, False])
    main(["judge", "--looped", str(looped), "--twin", str(twin)])
    printed = " ".join(capsys.readouterr().out.split())
    assert "no gain could have been shown" in printed and "no gain can be found by trials of this size" in printed


def test_arms_with_other_items_are_not_compared(tmp_path: Path) -> None:
    looped, short = lm_eval(tmp_path / "l", LOOPED), lm_eval(tmp_path / "t", TWIN[:150])
    said(TrialError, "item '150' of gsm8k is missing in twin", lambda: judge(looped=looped, twin=short))
    other = lm_eval(tmp_path / "o", TWIN, doc_hash=digest("another question"))
    said(TrialError, r"item '0' of gsm8k has the reference answer '0 \(document .*other tasks", lambda: judge(looped=looped, twin=other))
    prompted = lm_eval(tmp_path / "p", TWIN, prompt_hash=digest("with a chat template"))
    said(TrialError, "item '0' of gsm8k was asked with another prompt", lambda: judge(looped=looped, twin=prompted))
    lm_eval_results(looped.parent, 200)
    newer = lm_eval(tmp_path / "n", TWIN)
    values = {"n-samples": {"gsm8k": {"effective": 200}}, "versions": {"gsm8k": 4.0}}
    (newer.parent / f"results_{DATE}.json").write_text(json.dumps(values))
    said(TrialError, "gsm8k is version 3.0 in looped, 4.0 in twin", lambda: judge(looped=looped, twin=newer))


# --- bad files -----------------------------------------------------------------------------------------------------------------


def test_damaged_files_are_said_in_one_line(tmp_path: Path) -> None:
    whole = lm_eval(tmp_path / "cut", LOOPED)
    whole.write_text(whole.read_text()[:-200])
    said(RecordsError, "line 200: not a JSON object", lambda: read_results(whole))
    twice = lm_eval(tmp_path / "twice", LOOPED)
    twice.write_text(twice.read_text() * 2)
    said(RecordsError, "document 0 is there twice; two runs were written into one file", lambda: read_results(twice))
    said(RecordsError, "doc_id is 'x'", lambda: read_results(lm_eval(tmp_path / "id", [True], doc_id="x")))
    damaged = lm_eval(tmp_path / "r", LOOPED)
    (damaged.parent / f"results_{DATE}.json").write_text("{")
    said(RecordsError, "damaged; it says how many items", lambda: read_results(damaged))
    two = tmp_path / "dates"
    lm_eval(two, LOOPED).rename(two / "samples_gsm8k_2026-01-01T00-00-00.1.jsonl")
    lm_eval(two, LOOPED)
    said(RecordsError, "holds two runs of gsm8k", lambda: read_results(two))
    (tmp_path / "empty").mkdir()
    said(RecordsError, "holds neither records.jsonl nor lm-eval's", lambda: read_results(tmp_path / "empty"))
    said(RecordsError, "no such file", lambda: read_results(tmp_path / "none.csv"))


def test_damaged_parquet_is_said_in_one_line(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="lighteval's files are Parquet")
    import pyarrow

    (tmp_path / "a.parquet").write_bytes(b"PAR1 and no more")
    said(RecordsError, "not a Parquet file that can be read", lambda: read_results(tmp_path / "a.parquet"))
    parquet.write_table(pyarrow.Table.from_pylist([{"doc": {"id": "0"}, "predictions": "x"}]), tmp_path / "b.parquet")
    said(RecordsError, "has no column 'metric'; its columns are doc, predictions", lambda: read_results(tmp_path / "b.parquet"))
    file = lighteval(tmp_path / "n", [True, False], tokens=3)
    rows = parquet.read_table(file).to_pylist()
    rows[1]["model_response"]["output_tokens"] *= 4
    parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    said(RecordsError, "item '2' has 4 answers and one grade", lambda: read_results(file))
    share = lighteval(tmp_path / "s", [True, False], metric="avg@n")
    rows = parquet.read_table(share).to_pylist()
    rows[1]["metric"]["avg@n"] = 0.25
    parquet.write_table(pyarrow.Table.from_pylist(rows), share)
    said(RecordsError, "avg@n of item '2' is 0.25, not right or wrong", lambda: read_results(share))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("task,item,correct\nt,0,1\nt,1\n", "line 3: has 2 cells, the heading 3"),
        ("task,item,correct\nt,0,maybe\n", "line 2: correct is 'maybe'; give true or false"),
        ("task,item,correct\nt,0,\n", "line 2: field 'correct' is missing"),
        ("task,item,correct,seed\nt,0,1,0.5\n", "line 2: seed is '0.5'; give a whole number"),
        ("task,item,correct,generated_tokens\nt,0,1,nan\n", "line 2: generated_tokens is nan"),
        ("task,item,correct,generated_tokens\nt,0,1,-3\n", "line 2: generated_tokens is -3"),
        ("task,item,correct,flops\nt,0,1,0\n", "line 2: flops is 0, and no answer costs nothing"),
        ("task,item,correct,flops\nt,0,1,many\n", "line 2: flops is 'many'; give a number, or leave the cell empty"),
        ("task,item,item,correct\nt,0,0,1\n", "two columns called 'item'"),
        ("question,right\na,1\n", "has no column 'item'; its columns are question, right"),
        ("task,item,correct\n", "holds no records"),
        ("", "holds no records"),
    ],
)
def test_bad_csv(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.csv").write_text(text)
    said(RecordsError, message, lambda: read_results(tmp_path / "a.csv"))


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    for name in ("a.csv", f"samples_t_{DATE}.jsonl"):
        (tmp_path / name).write_bytes(b"\xff\xfe\x00,\x81")
        said(RecordsError, "not (CSV|UTF-8) text|UTF-8", lambda name=name: read_results(tmp_path / name))


def test_seeds_that_a_file_names_itself_are_not_named_again(tmp_path: Path) -> None:
    said(RecordsError, "leave out @1", lambda: read_results(plain(tmp_path / "a.jsonl", LOOPED), ResultsChoice(seed=1)))
    said(RecordsError, "leave out @1", lambda: read_results(csv_file(tmp_path / "a.csv", LOOPED), ResultsChoice(seed=1)))
