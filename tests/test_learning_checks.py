"""What ``loopwise learn`` refuses: options that do nothing, loops that add no pass, and, before an estimate, what a run would refuse."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from learning_sets import LOOPS, ROWS, chat_model, chats, tiny_set
from loopwise.cli import main
from loopwise.data import HELD_OUT_FOLDER, TraceSettings, encode_traces
from loopwise.data.chat_tokenizers import ChatTokenizerChoice
from loopwise.recipes.learning_equal import ControlError, first_stage_ratio, longer_ratio
from loopwise.recipes.learning_members import Controls
from loopwise.recipes.learning_set import plan_set
from loopwise.training import PassSchedule, TrainingError
from training_cases import write_text_shards

pytestmark = pytest.mark.usefixtures("no_local_items")


@pytest.fixture
def no_local_items(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOOPWISE_DATA", raising=False)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chats(tmp_path_factory.mktemp("data") / "chats.jsonl")


@pytest.fixture(scope="module")
def traces(model: Path, sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoded") / "traces"
    settings = TraceSettings(sources=(str(sources),), sequence_tokens=ROWS.sequence_tokens)
    encode_traces(settings, ChatTokenizerChoice(name=str(model), label="m"), folder)
    return folder


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text_shards(tmp_path_factory.mktemp("shards") / "text")


@pytest.fixture(scope="module")
def bare_shards(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Without held-out text."""
    folder = tmp_path_factory.mktemp("bare") / "text"
    shutil.copytree(shards, folder)
    shutil.rmtree(folder / HELD_OUT_FOLDER)
    return folder


@pytest.fixture
def data(request: pytest.FixtureRequest) -> Path:
    """The folder or file of the name that a test is given."""
    found: Path = request.getfixturevalue(request.param)
    return found


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line in which a command is refused."""
    with pytest.raises(SystemExit) as raised:
        main(["learn", *arguments])
    assert raised.value.code not in (0, None)
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    return lines[0]


def estimated(recipe: str, model: Path, data: Path, out: Path, *more: str) -> list[str]:
    arguments = [recipe, "--scale", "nano", "--model", str(model), "--loops", LOOPS, "--data", str(data), "--out", str(out)]
    return [*arguments, "--sequence-tokens", "48", "--device", "cpu", "--estimate", *more]


# --- options that do nothing, and zeros --------------------------------------------------------------------------------


NOTHING: list[tuple[str, str, tuple[str, ...], str]] = [
    ("short-ft", "sources", ("--random-seed", "5"), "random_seed 5 is for the control random; ask for that, or leave it out"),
    ("short-ft", "sources", ("--equal", "measured"), "equal measured is for the control equal-flops; ask for that, or leave it out"),
    ("short-ft", "sources", ("--mixture", "m.json"), "--mixture m.json is for token shards"),
    ("short-ft", "traces", ("--mixture", "m.json"), "--mixture m.json is for token shards"),
    ("short-ft", "sources", ("--evaluate-every", "2"), "--evaluate-every 2 is for token shards with held-out text"),
    ("continued", "bare_shards", ("--evaluate-every", "2"), "--evaluate-every 2 is for held-out text, and"),
    ("continued", "shards", ("--packing", "single"), "--packing single is for traces"),
    ("continued", "shards", ("--workers", "2"), "--workers 2 are processes that encode; leave it out"),
    ("short-ft", "traces", ("--workers", "2"), "--workers 2 are processes that encode; leave it out"),
    ("short-ft", "traces", ("--items", "."), "--items . is where tasks' items are, and nothing here reads any; leave it out"),
    ("short-ft", "sources", ("--items", ".", "--against", "none"), "nothing here reads any; leave it out"),
    ("short-ft", "sources", ("--batch", "0"), "num_sequences is 0; give a whole number, at least 1"),
    ("short-ft", "sources", ("--sequence-tokens", "0"), "sequence_tokens is 0; give a whole number, at least 1"),
    ("short-ft", "sources", ("--tokens", "0"), "num_tokens is 0"),
    ("short-ft", "sources", ("--learning-rate", "0"), "learning_rate is 0"),
    ("short-ft", "sources", ("--workers", "0"), "0 workers"),
    ("short-ft", "sources", ("--micro-batch", "0"), "micro_batch_sequences is 0"),
    ("short-ft", "sources", ("--checkpoint-every", "0"), "checkpoint_every_steps is 0"),
    ("short-ft", "sources", ("--evaluate-every", "0"), "evaluate_every_steps is 0"),
    ("lora-ft", "sources", ("--rank", "0"), "rank is 0"),
    ("long-ft", "sources", ("--budget-seconds", "0"), "budget_seconds is 0"),
    ("long-ft", "sources", ("--draw-passes", "0", "2"), "least is 0"),
    ("lora-grpo", "sources", ("--grpo-steps", "0"), "num_steps is 0"),
    ("lora-grpo", "sources", ("--grpo-budget", "0"), "budget_tokens is 0"),
]


@pytest.mark.parametrize(("recipe", "data", "more", "words"), NOTHING, indirect=["data"])
def test_options_that_do_nothing_and_zeros_are_refused(
    recipe: str, data: Path, more: tuple[str, ...], words: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in told(capsys, *estimated(recipe, model, data, tmp_path / "out", *more))
    assert not (tmp_path / "out").exists()


def test_options_of_training_without_data_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--loops does nothing without --data; give --data too" in told(capsys, "short-ft", "--loops", "2:4 x2")
    assert "--estimate does nothing without --data" in told(capsys, "short-ft", "--estimate")
    main(["learn", "short-ft", "--scale", "nano", "--json"])
    assert '"scale": "nano"' in capsys.readouterr().out


# --- loops that add no pass --------------------------------------------------------------------------------------------


def planned(recipe: str, model: Path, sources: Path, **more: Any) -> None:
    plan_set(tiny_set(model, sources, Path("nowhere"), recipe=recipe, **more))


@pytest.mark.parametrize("recipe", ["short-ft", "long-ft", "conversion", "lora-ft"])
@pytest.mark.parametrize(
    ("loops", "idle"), [("2:4 x1", "2:4 x1"), ("2:4 x2 + 2.mlp x1", "2.mlp x1"), ("1:3 x2 + 4:5 x1 damped beta=0.5", "4:5 x1")]
)
def test_loops_that_add_no_pass_are_refused(recipe: str, loops: str, idle: str, model: Path, sources: Path) -> None:
    with pytest.raises(TrainingError, match=f"loop {idle} adds no pass, .* give at least x2") as raised:
        planned(recipe, model, sources, loops=loops)
    assert "\n" not in str(raised.value)


def test_anchored_depth_draws_its_own_passes_and_a_draw_of_one_alone_is_refused(model: Path, sources: Path) -> None:
    planned("anchored", model, sources, loops="2:4 x1")
    with pytest.raises(TrainingError, match=r"passes are drawn from 1 to 1, so the loop is never trained"):
        planned("long-ft", model, sources, settings={"passes": PassSchedule(kind="uniform", most=1)})


# --- what a run refuses, its estimate refuses --------------------------------------------------------------------------


NONE = ("--against", "none")
REFUSED: list[tuple[str, tuple[str, ...], str]] = [
    ("short-ft", ("--against", "zzz"), "--against zzz: no task is named 'zzz'"),
    ("short-ft", ("--against", "ladder"), "ladder: its items are made from templates"),
    ("short-ft", ("--against", "no.jsonl"), "no.jsonl: evaluation items are read from"),
    ("short-ft", ("--items", "/nonexist"), "--items /nonexist: no such file or folder"),
    ("short-ft", (*NONE, "--question", "q"), "question is 'q' and answer None"),
    ("short-ft", (*NONE, "--answer", "a"), "question is None and answer 'a'"),
    ("lora-grpo", (*NONE, "--problems", "zzz"), "no task is named 'zzz'"),
    ("lora-grpo", (*NONE, "--problems", "math500"), "math500 has no train split"),
    ("lora-grpo", (*NONE, "--problems", "ladder", "ladder"), "problems of ladder are asked for twice"),
    ("lora-grpo", (*NONE, "--problems", "arc_challenge"), "arc_challenge"),
    ("lora-grpo", (*NONE, "--grpo-budget", "100000"), "give a smaller budget (--grpo-budget)"),
    ("lora-grpo", (*NONE, "--micro-batch", "5"), "a micro-batch of 5 does not share out GRPO's 32 answers"),
    ("lora-grpo", (*NONE, "--items", "/nonexist", "--problems", "gsm8k"), "--items /nonexist: no such file or folder"),
]


@pytest.mark.parametrize(("recipe", "more", "words"), REFUSED)
def test_an_estimate_refuses_what_a_run_refuses_and_neither_leaves_a_folder(
    recipe: str, more: tuple[str, ...], words: str, model: Path, sources: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = estimated(recipe, model, sources, tmp_path / "out", *more)
    assert words in told(capsys, *arguments)
    assert words in told(capsys, *[one for one in arguments if one != "--estimate"])
    assert not (tmp_path / "out").exists()


def test_items_that_are_here_are_read_before_an_estimate(
    model: Path, sources: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    items = tmp_path / "items"
    (items / "gsm8k").mkdir(parents=True)
    arguments = estimated("short-ft", model, sources, tmp_path / "out", "--against", "gsm8k", "--items", str(items))
    assert "some are missing: gsm8k" in told(capsys, *arguments)
    (items / "gsm8k" / "test.jsonl").write_text('{"question": "What is 2+2?", "answer": "#### 4"}\n')
    main(["learn", *arguments])
    assert "2 members, 1 seeds" in capsys.readouterr().out
    main(["learn", *estimated("lora-grpo", model, sources, tmp_path / "out", *NONE)])
    assert "2 members, 1 seeds" in capsys.readouterr().out and not (tmp_path / "out").exists()


# --- a control is never trained less than the twin ---------------------------------------------------------------------


@pytest.mark.parametrize(("equal", "unit"), [("counted", "training_flops"), ("measured", "seconds")])
def test_a_first_stage_is_longer_or_the_control_fails(equal: str, unit: str) -> None:
    later = {"training_flops": "grpo_flops", "seconds": "grpo_seconds"}[unit]
    twin = {unit: 30.0, "evaluation": {later: 20.0}}
    assert longer_ratio(first_stage_ratio({unit: 45.0}, twin, equal)) == 2.5
    for looped in (10.0, 25.0, 30.0):
        words = f"equal-flops: the looped model took {looped:g} {unit.replace('_', ' ')}, no more than its twin's 30"
        with pytest.raises(ControlError, match=words) as raised:
            longer_ratio(first_stage_ratio({unit: looped}, twin, equal))
        assert "\n" not in str(raised.value)
    with pytest.raises(ControlError):
        longer_ratio({unit: {"looped": 1.0, "twin": 2.0}, "ratio": float("nan")})


def test_options_of_a_control_go_with_it() -> None:
    assert Controls(names=("random", "equal-flops"), random_seed=5, equal="measured").random_seed == 5
