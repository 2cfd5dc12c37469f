"""The commands as a user meets them: output, JSON, and one line for everything that is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from loopwise.cli import COMMANDS, main
from tiny import tiny_config, tiny_model, tiny_tokenizer

LOOPS = "1:4 x2 damped beta=0.25"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "base"
    tiny_model("llama").save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def run(capsys: pytest.CaptureFixture[str], *args: object) -> str:
    main([str(arg) for arg in args])
    return capsys.readouterr().out


def fail(capsys: pytest.CaptureFixture[str], *args: object) -> str:
    with pytest.raises(SystemExit) as stop:
        main([str(arg) for arg in args])
    out, err = capsys.readouterr()
    assert stop.value.code not in (0, None)
    assert out == "" and err.count("\n") == 1 and err.startswith("loopwise")
    return err


def test_help_comes_without_heavy_imports() -> None:
    code = "import sys; from loopwise.cli import main\ntry: main(['--help'])\nexcept SystemExit as s: assert s.code == 0\n"
    code += "assert not {'torch', 'transformers', 'scipy', 'altair', 'jinja2'} & set(sys.modules), 'heavy'"
    source = str(Path(__file__).parent.parent / "src")
    started = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": source, "PATH": ""}, capture_output=True, text=True, check=True)
    assert time.perf_counter() - started < 5  # a stop against an import gone wrong; the speed itself is measured in benchmarks/
    assert all(name in done.stdout for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(capsys: pytest.CaptureFixture[str], name: str) -> None:
    with pytest.raises(SystemExit) as stop:
        main([name, "--help"])
    out = capsys.readouterr().out
    assert stop.value.code == 0
    assert f"Example: loopwise {name}" in out and "--json" in out


def test_show_reads_a_config_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny_config("qwen3").save_pretrained(tmp_path)
    text = run(capsys, "show", tmp_path, "--loops", LOOPS, "--sites")
    assert "layers 1 to 3, 2 passes, damped, beta 0.25" in text and "6 -> 9 (1.500x)" in text
    found = json.loads(run(capsys, "show", tmp_path / "config.json", "--loops", LOOPS, "--json"))
    names = ("num_layers", "layer_passes", "layer_pass_ratio", "flops_per_token", "flops_ratio", "kv_bytes_per_token", "kv_bytes_ratio")
    assert [found[name] for name in names[:3]] == [6, 9, 1.5] and set(names) <= set(found)
    assert found["kv_bytes_ratio"] == 1.5 and found["loops"] == LOOPS


def test_insert_show_and_generate_agree_on_the_loop(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "looped"
    assert json.loads(run(capsys, "insert", base, "--loops", "1-3 x2 damped beta=0.25", "--out", out, "--json"))["loops"] == LOOPS
    assert json.loads(run(capsys, "show", out, "--json"))["loops"] == LOOPS
    found = json.loads(run(capsys, "generate", out, "w5 w6 w7", "--budget", "8", "--json"))
    direct = json.loads(run(capsys, "generate", base, "w5 w6 w7", "--loops", LOOPS, "--budget", "8", "--json"))
    assert found["token_ids"] == direct["token_ids"] and found["loops"] == LOOPS
    assert found["generated_tokens"] == len(found["token_ids"]) <= 8


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["bogus"], "unknown command 'bogus'"),
        (["show"], "Missing"),
        (["show", "BASE", "--loops", "4:9 x2"], "loop 4:9 is out of range: the model has 6 layers"),
        (["show", "BASE", "--loops", "4:2 x2"], "is reversed"),
        (["show", "BASE", "--nope"], "--nope"),
        (["show", "BASE/none/at/all"], "no such file or folder"),
        (["insert", "BASE", "--loops", "1:2 x0", "--out", "OUT"], "has 0 passes"),
        (["show", "BASE", "--loops", "0:3 x30000000"], "at most 1000"),
        (["insert", "BASE", "--loops", "1:2 x2", "--out", "BASE"], "is not empty"),
        (["generate", "BASE", "w5", "--budget", "0"], "budget_tokens is 0"),
        (["generate", "BASE", "w5", "--budget", "a"], "--budget"),
        (["generate", "BASE", "w5", "--budget", "64", "--budget-forcing"], "takes the whole budget"),
        (["generate", "BASE", "w5", "--top-p", "2"], "top_p is 2"),
        (["evaluate", "BASE", "--task", "nothing", "--out", "OUT"], "nothing"),
        (["evaluate", "BASE", "--task", "gsm8k", "--data", "OUT/none", "--out", "OUT"], "none"),
        (["evaluate", "BASE", "--task", "ladder", "--budget", "-1", "--out", "OUT"], "budget_tokens is -1"),
        (["trial", "BASE", "--out", "OUT"], "has no loop"),
        (["trial", "BASE", "--loops", LOOPS, "--budgets", "8", "8", "--out", "OUT"], "ascending"),
        (["trial", "BASE", "--loops", LOOPS, "--rules", "magic", "--out", "OUT"], "unknown decoding rule 'magic'"),
        (["trial", "BASE", "--loops", LOOPS, "--larger", "big", "--out", "OUT"], "go together"),
        (["judge", "--looped", "OUT/a.jsonl", "--twin", "OUT/b.jsonl"], "no such file"),
        (["judge", "--looped", "OUT/a.jsonl"], "twin"),
        (["report", "BASE"], "holds no plan.json"),
        (["show", "BASE", "--config", "OUT/none.json"], "cannot be read"),
        (["show", "--config=OUT/none.json"], "cannot be read"),
        (["generate", "BASE", "w5", "--device", "cuda:99"], "device"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], args: list[str], message: str
) -> None:
    filled = [arg.replace("BASE", str(base)).replace("OUT", str(tmp_path / "out")) for arg in args]
    assert message in fail(capsys, *filled)
    assert not (tmp_path / "out" / "records.jsonl").exists()


def lines(path: Path, correct: list[int], **more: Any) -> Path:
    rows = [{"task": "t", "item": f"i{n}", "seed": 0, "sample": 0, "correct": bool(c)} | more for n, c in enumerate(correct)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_judge_reads_anybodys_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    looped = lines(tmp_path / "looped.jsonl", [1] * 140 + [0] * 60, generated_tokens=100)
    twin = lines(tmp_path / "twin.jsonl", [0] * 60 + [1] * 80 + [0] * 60, generated_tokens=100)
    found = json.loads(run(capsys, "judge", "--looped", looped, "--twin", twin, "--json"))
    assert found["equal_flops"] is None and "cost" in found["equal_flops_reason"]
    first = found["equal_parameters"]
    assert first["delta_points"] == pytest.approx(30.0) and first["p_value"] < 0.001 and not first["equivalent"]
    assert first["ci95"][0] < 30 < first["ci95"][1]
    found = json.loads(run(capsys, "judge", "--looped", looped, "--twin", twin, "--cost-ratio", "1.25", "--json"))
    assert found["verdict"] == "pays"
    assert found["equal_flops"]["delta_points"] == pytest.approx(30.0)
    text = run(capsys, "judge", "--looped", looped, "--twin", twin, "--cost-ratio", "1.25", "--out", tmp_path / "judged")
    assert text.startswith("PAYS") and (tmp_path / "judged" / "report.html").exists()


def test_judge_names_what_does_not_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    looped, twin = lines(tmp_path / "looped.jsonl", [1, 0, 1]), lines(tmp_path / "twin.jsonl", [1, 0])
    assert "i2" in fail(capsys, "judge", "--looped", looped, "--twin", twin)
    twin.write_text(twin.read_text() + '{"task": "t", "item": "i2", "seed": 0, "sample": 0}\n')
    assert "line 3: field 'correct' is missing" in fail(capsys, "judge", "--looped", looped, "--twin", twin)
    twin.write_text(twin.read_text()[:-30])
    assert "line 3: not a JSON object" in fail(capsys, "judge", "--looped", looped, "--twin", twin)


@pytest.mark.parametrize("config", [5, {"budget": "x"}, {"model": 5, "prompt": []}, {"nothing": 1}, ["a"]])
def test_a_saved_configuration_is_checked_like_options(tmp_path: Path, capsys: pytest.CaptureFixture[str], config: object) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"command": "generate", "config": config}))
    fail(capsys, "generate", "--config", file)


def test_a_saved_flag_that_is_on_by_default_comes_back_as_it_was(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for race in (True, False):
        file = tmp_path / f"{race}.json"
        config = {"model": str(base), "race": race, "count": True, "widths": [2], "passes": [2], "text": []}
        file.write_text(json.dumps({"command": "place", "config": config}))
        assert run(capsys, "place", "--config", file).startswith("15 candidates")
        assert "5 candidates" in run(capsys, "place", "--config", file, "--no-race", "--betas", "0.25")


@pytest.mark.slow
def test_a_trial_runs_resumes_reports_and_keeps_its_plan(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "trial"
    args = ["trial", base, "--loops", LOOPS, "--task", "ladder", "--budgets", "4", "12", "20", "--limit", "12", "--out", out]
    found = json.loads(run(capsys, *args, "--noise-floor", "--json"))
    assert found["verdict"] in ("pays", "does not pay", "not shown")
    plan = json.loads((out / "plan.json").read_text())
    assert plan["alpha"] == 0.05 and plan["deciding_rule"] == "budget-forcing" and plan["deciding_budget_index"] == 2
    assert any("cannot hold the reserve" in one["reason"] for one in found["excluded"])
    assert {"report.html", "report.md", "verdict.json", "noise_floor.json", "config.json"} <= {file.name for file in out.iterdir()}
    before = {file: file.read_bytes() for file in out.glob("runs/**/records.jsonl")}
    assert json.loads(run(capsys, *args, "--noise-floor", "--json"))["equal_parameters"] == found["equal_parameters"]
    assert {file: file.read_bytes() for file in out.glob("runs/**/records.jsonl")} == before
    assert json.loads(run(capsys, "report", out, "--json"))["equal_parameters"] == found["equal_parameters"]
    assert "another alpha" in fail(capsys, *args, "--alpha", "0.01")
    assert "another alpha" in fail(capsys, "trial", "--config", out / "config.json", "--alpha", "0.01")
    again = json.loads(run(capsys, "trial", "--config", out / "config.json", "--noise-floor", "--json"))
    assert again["equal_parameters"] == found["equal_parameters"]
    next(iter(before)).unlink()
    assert "records.jsonl: no such file" in fail(capsys, "report", out)
