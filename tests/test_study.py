"""Studies on disk: append-only, readable while they are written, and nothing lost when the disk is full."""

from __future__ import annotations

import errno
import fcntl
import json
import multiprocessing
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loopwise.cli import main
from loopwise.records import CandidateResult, RecordsError, StepOfSearch, StudyError, StudyWriter, read_losses, read_study
from loopwise.records import study_writing as study_module

HEADER: dict[str, Any] = {"model": "tiny", "model_hash": "1", "mixture_sha256": "2", "num_layers": 12, "started": "now"}
GRID: dict[str, Any] = {"algorithm": "grid", "objective": "ppl_t", "space": {"num_candidates": 2}}


def result(number: int, **more: Any) -> CandidateResult:
    values = {"loss_nats": 2.0 + number / 7, "temperature": 1.0}
    defaults: dict[str, Any] = dict(loops=f"{number}:{number + 2} x2", layer_pass_ratio=1.2, status="scored", values=values)
    return CandidateResult(**(defaults | more))


def step(number: int) -> StepOfSearch:
    return StepOfSearch(
        number=number, loops=("1:3 x2", "2:4 x2"), share=1.0, scores=(2.5, None), evaluations=2.0, best="1:3 x2", best_score=2.5
    )


def test_what_is_written_is_read(tmp_path: Path) -> None:
    writer = StudyWriter(tmp_path / "a" / "study", HEADER)
    ruined = result(2, status="ruined", values={}, reason="its losses are not finite")
    writer.append([result(1), ruined, result(1, share=0.25)], {"1:3 x2": np.arange(5, dtype=np.float32)})
    writer.append([result(1), result(3, measure="accuracy:ladder", values={"accuracy": 0.5})])
    writer.append([result(0, loops="", layer_pass_ratio=1.0)])
    trace = writer.search("grid", GRID)
    trace.append(step(0))
    study = read_study(tmp_path / "a" / "study")
    assert study.header == HEADER
    assert study.results == (
        result(1), ruined, result(1, share=0.25), result(3, measure="accuracy:ladder", values={"accuracy": 0.5}),
        result(0, loops="", layer_pass_ratio=1.0),
    )  # fmt: skip
    assert study.unlooped == study.results[-1]
    assert [(one.name, one.header, one.steps) for one in study.searches] == [("grid", GRID, (step(0),))]
    losses = read_losses(study.folder, "1:3 x2")
    assert losses is not None and losses.tolist() == [0, 1, 2, 3, 4] and read_losses(study.folder, "2:4 x2") is None
    again = StudyWriter(tmp_path / "a" / "study", HEADER)
    assert again.results == writer.results and again.find("1:3 x2", share=0.25) == result(1, share=0.25)
    trace.close()
    assert again.search("grid", GRID).steps == (step(0),)


def test_the_first_result_of_a_candidate_stands(tmp_path: Path) -> None:
    first, second = StudyWriter(tmp_path, HEADER), StudyWriter(tmp_path, HEADER)
    first.append([result(1)])
    second.append([result(1, values={"loss_nats": 9.0}), result(2)])
    assert read_study(tmp_path).results == (result(1), result(2))
    assert StudyWriter(tmp_path, HEADER).find("1:3 x2") == result(1)


def test_what_a_race_dropped_does_not_count_as_scored_and_is_overtaken(tmp_path: Path) -> None:
    writer = StudyWriter(tmp_path, HEADER)
    dropped = result(1, status="dropped", share=0.25, reason="loses", search="grid")
    writer.append([dropped])
    assert writer.find("1:3 x2") is None and read_study(tmp_path).results == (dropped,)
    writer.append([result(1)])
    assert writer.find("1:3 x2") == result(1) and read_study(tmp_path).results == (result(1),)


def _write(folder: Path, numbers: range) -> None:
    writer = StudyWriter(folder, HEADER)
    for number in numbers:
        writer.append([result(number), result(number, share=0.5)], {f"{number}:{number + 2} x2": np.full(300, number, np.float32)})


def test_several_processes_write_one_study_that_is_readable_all_the_time(tmp_path: Path) -> None:
    StudyWriter(tmp_path, HEADER)
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write, args=(tmp_path, range(at, at + 25))) for at in (0, 15, 30)]
    for one in writers:
        one.start()
    counts = [0]
    while any(one.is_alive() for one in writers):
        counts.append(len(read_study(tmp_path).results))
    for one in writers:
        one.join()
        assert one.exitcode == 0
    assert counts == sorted(counts)
    study = read_study(tmp_path)
    assert {found.key for found in study.results} == {("text", f"{n}:{n + 2} x2", share, "") for n in range(55) for share in (1.0, 0.5)}
    for found in study.results:
        losses = read_losses(tmp_path, found.loops)
        assert losses is not None and found == result(int(found.loops.split(":")[0]), share=found.share)


def test_a_half_line_is_left_out_by_readers_and_removed_by_the_next_writer(tmp_path: Path) -> None:
    writer = StudyWriter(tmp_path, HEADER)
    writer.append([result(1), result(2)])
    file = tmp_path / "results.jsonl"
    whole = file.read_bytes()
    for cut in range(1, len(whole.splitlines(keepends=True)[1]) + 1, 9):
        file.write_bytes(whole[:-cut])
        assert read_study(tmp_path).results == (result(1),)
        again = StudyWriter(tmp_path, HEADER)
        assert set(again.results) == {result(1).key}
        again.append([result(2)])
        assert file.read_bytes() == whole


def test_a_reader_waits_for_nobody_and_a_writer_waits_its_turn(tmp_path: Path) -> None:
    writer = StudyWriter(tmp_path, HEADER)
    writer.append([result(1)])
    with open(tmp_path / "results.jsonl", "a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        held.write('{"loops": "half')
        held.flush()
        assert read_study(tmp_path).results == (result(1),)
        other = threading.Thread(target=writer.append, args=([result(2)],))
        other.start()
        other.join(0.2)
        assert other.is_alive()
        held.truncate(len((tmp_path / "results.jsonl").read_bytes().splitlines(keepends=True)[0]))
    other.join(5)
    assert not other.is_alive()
    assert read_study(tmp_path).results == (result(1), result(2))


def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = StudyWriter(tmp_path, HEADER)
    writer.append([result(1)])
    trace = writer.search("grid", GRID)
    trace.append(step(0))
    before = (tmp_path / "results.jsonl").read_bytes()
    own = os.write

    for append in (lambda: writer.append([result(2)]), lambda: trace.append(step(1))):
        monkeypatch.setattr(os, "write", _fills_after(own, 20))  # in the middle of a line
        with pytest.raises(OSError, match="No space left on device; what was written before is safe, the same command goes on") as caught:
            append()
        assert "\n" not in str(caught.value) and "jsonl" in str(caught.value)
    assert (tmp_path / "results.jsonl").read_bytes() == before
    assert read_study(tmp_path).results == (result(1),) and writer.find("2:4 x2") is None
    assert trace.steps == read_study(tmp_path).searches[0].steps == (step(0),)
    monkeypatch.setattr(os, "write", own)
    writer.append([result(2)])
    trace.append(step(1))
    assert read_study(tmp_path).results == (result(1), result(2)) and len(read_study(tmp_path).searches[0].steps) == 2


def _fills_after(own: Any, room: int) -> Any:
    def write(handle: int, content: bytes) -> int:
        nonlocal room
        if room == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        written: int = own(handle, content[:room])
        room -= written
        return written

    return write


def test_losses_that_do_not_fit_leave_no_result_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = StudyWriter(tmp_path, HEADER)

    def full(file: Path, content: bytes) -> int:
        with open(file, "wb") as part:
            part.write(content[:10])
        raise OSError(errno.ENOSPC, "No space left on device", str(file))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(OSError, match="No space left on device; what was written before is safe"):
            writer.append([result(1)], {"1:3 x2": np.zeros(5, np.float32)})
    assert read_study(tmp_path).results == () and list((tmp_path / "losses").iterdir()) == []
    writer.append([result(1)], {"1:3 x2": np.zeros(5, np.float32)})
    assert read_losses(tmp_path, "1:3 x2") is not None


def test_damage_is_named_with_its_line(tmp_path: Path) -> None:
    writer = StudyWriter(tmp_path, HEADER)
    writer.append([result(1), result(2)])
    file = tmp_path / "results.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    for damaged in ("{nonsense}\n", '{"loops": "1:3 x2"}\n', lines[1].replace("scored", "won"), "[1]\n"):
        file.write_text(lines[0] + damaged)
        for act in (lambda: read_study(tmp_path), lambda: StudyWriter(tmp_path, HEADER)):
            with pytest.raises(StudyError, match=r"results.jsonl, line 2: damaged .*; remove that line to go on") as caught:
                act()
            assert "\n" not in str(caught.value) and isinstance(caught.value, RecordsError)
    with pytest.raises(StudyError, match="holds no study"):
        read_study(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("file", "header", "message"),
    [
        ("study.json", {}, r"study\.json: has no 'model'; put back a copy"),
        ("study.json", {"model": "tiny"}, r"study\.json: has no 'num_layers'"),
        ("study.json", {"model": "tiny", "num_layers": "12"}, r"study\.json: num_layers is '12', not a whole number"),
        ("searches/grid/search.json", {}, r"search\.json: has no 'algorithm'"),
        ("searches/grid/search.json", {"algorithm": "tpe"}, r"search\.json: has no 'objective'"),
        ("searches/grid/search.json", {"algorithm": "grid", "objective": "ppl_t"}, r"search\.json: has no 'space'"),
        ("searches/grid/search.json", GRID | {"space": {}}, r"search\.json: has no 'space.num_candidates'"),
    ],
)
def test_a_header_without_what_readers_need_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, header: dict[str, Any], message: str
) -> None:
    StudyWriter(tmp_path, HEADER).search("grid", GRID).close()
    (tmp_path / file).write_text(json.dumps(header))
    with pytest.raises(StudyError, match=message):
        read_study(tmp_path)
    with pytest.raises(SystemExit):
        main(["report", str(tmp_path)])
    error = capsys.readouterr().err
    assert error.startswith("loopwise report: ") and error.count("\n") == 1


def test_of_two_headers_at_once_exactly_one_binds_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, winners = study_module.write_json, list[StudyWriter]()

    def overtaken(file: Path, value: Any) -> None:
        if not winners:
            monkeypatch.setattr(study_module, "write_json", own)
            winners.append(StudyWriter(tmp_path, HEADER | {"mixture_sha256": "theirs"}))
        own(file, value)

    monkeypatch.setattr(study_module, "write_json", overtaken)  # another process binds it after we have looked
    with pytest.raises(StudyError, match=r"was made with another mixture_sha256 \('theirs', now 'ours'\)"):
        StudyWriter(tmp_path, HEADER | {"mixture_sha256": "ours"})
    assert read_study(tmp_path).header == winners[0].header == HEADER | {"mixture_sha256": "theirs"}
    assert sorted(file.name for file in tmp_path.iterdir()) == ["losses", "study.json"]


def test_a_second_writer_of_a_search_is_refused_before_its_header_is_looked_at(tmp_path: Path) -> None:
    writer = StudyWriter(tmp_path, HEADER)
    trace = writer.search("grid", GRID)
    with pytest.raises(StudyError, match="another process is running this search"):
        writer.search("grid", GRID | {"seed": 9})
    trace.close()
    with pytest.raises(StudyError, match="was made with another seed"):
        writer.search("grid", GRID | {"seed": 9})
    writer.search("grid", GRID).close()  # what was refused let go of its lock


@pytest.mark.parametrize("name", ["", " ", ".", "..", "a/b", "/a", "a\\b", "../a"])
def test_a_name_that_is_none_for_a_folder_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(StudyError, match="is no name for a search's folder; give --name") as caught:
        StudyWriter(tmp_path, HEADER).search(name, GRID)
    assert "\n" not in str(caught.value) and not (tmp_path / "searches").exists() and not (tmp_path / "search.json").exists()


def test_a_header_that_does_not_fit_on_the_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: Path, content: str, encoding: str) -> int:
        with open(file, "w", encoding=encoding) as part:
            part.write(content[:10])
        raise OSError(errno.ENOSPC, "No space left on device", str(file))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        with pytest.raises(OSError, match="No space left on device; what was written before is safe, the same command goes on"):
            StudyWriter(tmp_path, HEADER)
    assert [file.name for file in tmp_path.iterdir()] == ["losses"]


def test_infinities_are_not_written(tmp_path: Path) -> None:
    writer = StudyWriter(tmp_path, HEADER)
    with pytest.raises(ValueError, match="JSON"):
        writer.append([result(1, values={"loss_nats": float("inf")})])
    assert read_study(tmp_path).results == ()
