"""What a run does with what is not its own: foreign files, damaged ones, data that changed, tokens that it does not know, a full disk."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from loopwise.data import DataError, TokenBatch, read_mixture
from loopwise.nets import Architecture, NetError, Recurrence
from loopwise.training import Execution, Ranks, StepMetrics, TrainingError, TrainSettings, read_evaluations, read_metrics, train
from loopwise.training.checkpoints import checkpoint_folders, keep_newest, newest_checkpoint, save_checkpoint
from loopwise.training.grpo_checkpoints import checkpoint_folder, mark_whole, newest_whole, remove_unusable
from loopwise.training.metrics import MetricsWriter, peak_flops
from loopwise.training.reporting import State
from loopwise.training.saving import bind_header, check_unused, save_model
from training_cases import KillAfter, Killed, Walks, fresh_net

SETTINGS = TrainSettings(num_steps=4)
CPU = Execution(device="cpu", checkpoint_every_steps=2)


def state(step: int) -> State:
    return State(step=step, tokens=step, flops=None, seconds=0.5)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize("name", ["model/mine.txt", "metrics.jsonl", "adapter/mine.txt", "checkpoints/step-1/mine.txt", ".notes"])
def test_a_folder_that_holds_something_else_is_left_as_it_is(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("mine", encoding="utf-8")
    before = contents(tmp_path)
    with pytest.raises(TrainingError, match=rf"{tmp_path}: holds {name.partition('/')[0]} and no run.json, .*; give a new --out"):
        train(fresh_net(), Walks(), SETTINGS, tmp_path, execution=CPU)
    assert contents(tmp_path) == before


def test_a_folder_may_hold_what_recipes_leave_before_a_run(tmp_path: Path) -> None:
    for name in ("lock", "result.json", "run.json.1.part"):
        (tmp_path / name).write_text("{}", encoding="utf-8")
    (tmp_path / "measured").mkdir()
    check_unused(tmp_path)
    check_unused(tmp_path / "new")
    (tmp_path / "run.json").write_text("{}", encoding="utf-8")
    (tmp_path / "model").mkdir()
    check_unused(tmp_path)
    with pytest.raises(TrainingError, match="is no folder; give a new --out"):
        check_unused(tmp_path / "run.json")


def damage(checkpoint: Path) -> None:
    file = next(checkpoint.glob("*.distcp"))
    file.write_bytes(file.read_bytes()[:-9])


@pytest.mark.parametrize(("keep", "damaged"), [(1, (20,)), (2, (20, 30))])
def test_damaged_checkpoints_do_not_count_among_those_that_stay(tmp_path: Path, keep: int, damaged: tuple[int, ...]) -> None:
    for step in damaged:
        damage(save_checkpoint(tmp_path, state(step), {"a": torch.ones(3)}, Ranks()))
    assert newest_checkpoint(tmp_path, lambda text: None) is None
    for step in (10, 15):
        written = save_checkpoint(tmp_path, state(step), {"a": torch.ones(3)}, Ranks())
        keep_newest(tmp_path, keep, written=written)
        found = newest_checkpoint(tmp_path, lambda text: None)
        assert found is not None and found[0] == written
    assert [folder.name for folder in checkpoint_folders(tmp_path)] == ["step-00000010", "step-00000015"][-keep:]


def test_damaged_checkpoints_of_the_second_stage_are_removed_before_the_trainer_counts_them(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        checkpoint_folder(tmp_path, step).mkdir()
        (checkpoint_folder(tmp_path, step) / "weights").write_text("w", encoding="utf-8")
        if step < 30:
            mark_whole(checkpoint_folder(tmp_path, step), state(step))
    (checkpoint_folder(tmp_path, 20) / "weights").write_text("damaged", encoding="utf-8")
    found = newest_whole(tmp_path, lambda text: None)
    assert found is not None
    remove_unusable(tmp_path, after_step=found[1].step)
    assert [folder.name for folder in tmp_path.iterdir()] == ["checkpoint-10"]


class Changed(Walks):
    """The same walks, but for one step."""

    def __init__(self, at: int) -> None:
        super().__init__()
        object.__setattr__(self, "at", at)

    def batch(self, step: int, first: int = 0, stop: int | None = None) -> TokenBatch:
        """Rows of a step's batch."""
        return Walks.batch(self, step if step != self.at else 1000, first, stop)  # type: ignore[attr-defined]


@pytest.mark.parametrize("at", [0, 1, 3])
def test_data_that_changed_at_the_same_size_are_refused_on_resume(tmp_path: Path, at: int) -> None:
    settings = replace(SETTINGS, num_steps=6)
    with pytest.raises(Killed):
        train(fresh_net(), Walks(), settings, tmp_path, execution=CPU, reporter=KillAfter(5))
    before = contents(tmp_path)
    with pytest.raises(TrainingError, match=rf"step {at + 1} was trained on batch [0-9a-f]{{16}}, the data now give .* give a new --out"):
        train(fresh_net(), Changed(at), settings, tmp_path, execution=CPU)
    assert contents(tmp_path) == before
    assert train(fresh_net(), Walks(), settings, tmp_path, execution=CPU).state.step == 6


class Unknown(Walks):
    """Walks, with a token of its own in the last row of one step."""

    def __init__(self, at: int, *, target: bool = False) -> None:
        super().__init__()
        object.__setattr__(self, "at", (at, target))

    def batch(self, step: int, first: int = 0, stop: int | None = None) -> TokenBatch:
        """Rows of a step's batch."""
        made = Walks.batch(self, step)
        at, target = self.at  # type: ignore[attr-defined]
        if step == at:
            (made.targets if target else made.input_ids)[-1, -1] = 64
        return TokenBatch(input_ids=made.input_ids[first:stop], targets=made.targets[first:stop])


@pytest.mark.parametrize("target", [False, True])
def test_tokens_beyond_the_vocabulary_stop_a_run_in_one_line(tmp_path: Path, target: bool) -> None:
    with pytest.raises(TrainingError, match="the batches have tokens beyond the model's vocabulary of 64"):
        train(fresh_net(), Unknown(0, target=target), SETTINGS, tmp_path / "first", execution=CPU)
    assert not (tmp_path / "first").exists()
    with pytest.raises(TrainingError, match=r"step 3: batch [0-9a-f]{16} has 1 tokens beyond the model's vocabulary of 64; give text"):
        train(fresh_net(), Unknown(2, target=target), SETTINGS, tmp_path / "later", execution=CPU)
    assert [metrics.step for metrics in read_metrics(tmp_path / "later")] == [1, 2]


def test_peaks_are_those_of_the_whole_name() -> None:
    names = {
        "NVIDIA L40": 181e12,
        "NVIDIA L40S": 362e12,
        "NVIDIA L4": 121e12,
        "NVIDIA A10": 125e12,
        "NVIDIA A100-SXM4-80GB": 312e12,
        "NVIDIA A100 80GB PCIe": 312e12,
        "NVIDIA H100 80GB HBM3": 989e12,
        "NVIDIA H100 PCIe": 756e12,
        "NVIDIA H100 NVL": 835e12,
        "NVIDIA H200": 989e12,
        "NVIDIA GH200 480GB": 989e12,
        "NVIDIA B200": 2250e12,
        "NVIDIA GB200": 2500e12,
    }
    assert {name: peak_flops(name) for name in names} == names
    for name in ("Tesla T4", "NVIDIA A10G", "NVIDIA H20", "NVIDIA L400", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", ""):
        assert peak_flops(name) is None, name


@pytest.mark.parametrize("content", ["[]", "7", "{", "null"])
def test_a_damaged_header_is_refused_in_one_line(tmp_path: Path, content: str) -> None:
    (tmp_path / "run.json").write_text(content, encoding="utf-8")
    with pytest.raises(TrainingError, match=r"run.json: damaged; give a new --out"):
        bind_header(tmp_path, {"settings": 1})


def step_line(**changes: Any) -> str:
    values: dict[str, Any] = dict(loss=2.0, lr=0.1, grad_norm=1.0, tokens=9, num_loops=3.0, batch_hash="ab", seconds=1.0, mfu=None)
    return json.dumps(asdict(StepMetrics(step=1, tokens_per_second=9.0, memory_bytes=5, **values)) | changes)


@pytest.mark.parametrize(
    "line",
    [
        '{"foo": 1}',
        "garbage",
        "",
        "[1]",
        '{"step": "1"}',
        '{"step": 1}',
        '{"step": 1, "evaluation": 3}',
        step_line(loss="x"),
        step_line(more=1),
        "\udcff",
    ],
)
def test_a_damaged_line_of_metrics_is_named_and_nothing_is_lost(tmp_path: Path, line: str) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(f"{step_line()}\n{line}\n{step_line(step=2)}\n".encode(errors="surrogateescape"))
    before = file.read_bytes()
    for read in (read_metrics, read_evaluations, lambda out: MetricsWriter(out, after_step=2)):
        with pytest.raises(TrainingError, match=r"metrics.jsonl: line 2 is damaged, .*; take that line out, or give a new --out") as raised:
            read(tmp_path)
        assert "\n" not in str(raised.value)
    assert file.read_bytes() == before


def test_lines_of_metrics_that_are_whole_are_read(tmp_path: Path) -> None:
    old = json.loads(step_line(loss=float("nan")))
    del old["passes"], old["terms"]
    evaluation = '{"step": 1, "evaluation": {"held_out_loss": 2.5}}'
    (tmp_path / "metrics.jsonl").write_text(f"{json.dumps(old)}\n{evaluation}\n", encoding="utf-8")
    assert [one.batch_hash for one in read_metrics(tmp_path)] == ["ab"] and read_evaluations(tmp_path)[1] == {"held_out_loss": 2.5}


@pytest.mark.parametrize("stage", ['{"tokens": 1e999}', '{"tokens": NaN}', '{"tokens": true}', '{"tokens": 9, "shares": {"a": NaN}}'])
def test_a_mixture_of_no_numbers_is_refused_with_its_file(tmp_path: Path, stage: str) -> None:
    values = '"shares": {"a": 1}' if "shares" not in stage else '"name": "a"'
    file = tmp_path / "m.json"
    file.write_text(f'{{"name": "m", "stages": [{stage[:-1]}, {values}}}]}}', encoding="utf-8")
    with pytest.raises(DataError, match=r"m.json: a stage has .*; give"):
        read_mixture(file)
    file.write_text(f'{{"name": "m", "stages": [{{"tokens": {"9" * 5000}, "shares": {{"a": 1}}}}]}}', encoding="utf-8")
    with pytest.raises(DataError, match=r"m.json: not JSON"):
        read_mixture(file)


@pytest.mark.parametrize(
    "changes",
    [
        dict(rms_norm_eps="abc"),
        dict(depth_scale=None),
        dict(beta="x", operator="damped"),
        dict(beta=True, operator="damped"),
        dict(rope_theta=float("inf")),
        dict(relu2_scale=float("nan")),
        dict(embedding_scale=10**400),
        dict(depth_key_eps=[1]),
    ],
)
def test_numbers_of_an_architecture_are_finite_numbers(changes: dict[str, Any]) -> None:
    with pytest.raises(NetError, match=rf"{next(iter(changes))} is .*; give a finite number"):
        Architecture(**changes)


@pytest.mark.parametrize("kind", ["fixed", "poisson", "lognormal_poisson"])
@pytest.mark.parametrize("mean", [float("inf"), float("nan"), 1e30])
def test_means_that_cannot_be_drawn_are_refused(kind: Any, mean: float) -> None:
    with pytest.raises(NetError, match=f"recurrence {kind} with mean .*; give a mean of at most 10000"):
        Recurrence(kind=kind, mean=mean)


@pytest.fixture
def small_files() -> Iterator[Callable[[int], None]]:
    """Bounds the size of files, as a full disk would; without a signal, since Python ignores it."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_told_in_one_line(tmp_path: Path, small_files: Callable[[int], None]) -> None:
    kept = save_checkpoint(tmp_path, state(1), {"a": torch.ones(3)}, Ranks())
    small_files(60_000)
    with pytest.raises(OSError, match=r"step-00000002.part: cannot be written \(.*\); the checkpoints before are safe") as raised:
        save_checkpoint(tmp_path, state(2), {"a": torch.ones(100_000)}, Ranks())
    assert "Traceback" not in str(raised.value) and "\n" not in str(raised.value), str(raised.value)
    found = newest_checkpoint(tmp_path, lambda text: None)
    assert found is not None and found[0] == kept


def test_a_disk_that_is_full_at_the_end_is_told_in_one_line_and_the_run_goes_on(tmp_path: Path, small_files: Callable[[int], None]) -> None:
    net, model = fresh_net(), tmp_path / "model"
    save_model(tmp_path, net, None, Ranks())
    before = contents(model)
    small_files(10_000)
    with pytest.raises(OSError, match=r"model.part: cannot be written \(.*\); the same command goes on when there is room") as raised:
        save_model(tmp_path, net, None, Ranks())
    assert "\n" not in str(raised.value) and contents(model) == before
