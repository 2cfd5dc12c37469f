"""Records: append-only, whole lines, resumed where they were, refused where they are damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loopwise.records import Record, RecordsError, RunWriter, parse_record, read_records, read_run

HEADER = {"task": "ladder", "budget_tokens": 64, "seeds": [0], "started": "2026-01-01", "parity": {"ok": True}}


def record(item: int, **changes: object) -> Record:
    fields = {"task": "ladder", "item": f"i{item}", "seed": 0, "sample": 0, "correct": item % 2 == 0} | changes
    return Record(**fields)  # type: ignore[arg-type]


def test_a_run_reads_back_as_it_was_written(tmp_path: Path) -> None:
    records = [record(0, finished=True, flops=1.5e9, text="é\n\u2028 two lines"), record(1, answer="7", extra={"level": 3})]
    with RunWriter(tmp_path / "run", HEADER) as writer:
        writer.append(records)
    run = read_run(tmp_path / "run")
    assert run.records == tuple(records)
    assert run.header == HEADER
    assert read_run(tmp_path / "run" / "records.jsonl") == run.__class__(run.header, run.records, str(tmp_path / "run" / "records.jsonl"))


def test_what_is_not_known_stays_unknown(tmp_path: Path) -> None:
    line = json.loads(record(0).to_json())
    assert line == {"task": "ladder", "item": "i0", "seed": 0, "sample": 0, "correct": True}
    assert parse_record(json.dumps(line), "here").generated_tokens is None


def test_a_killed_write_loses_its_half_line_and_nothing_else(tmp_path: Path) -> None:
    with RunWriter(tmp_path, HEADER) as writer:
        writer.append([record(0), record(1)])
    file = tmp_path / "records.jsonl"
    file.write_bytes(file.read_bytes() + record(2).to_json().encode()[:20])
    with pytest.raises(RecordsError, match=r"records.jsonl, line 3: not a JSON object"):
        read_run(tmp_path)
    with RunWriter(tmp_path, HEADER) as writer:
        assert [one.item for one in writer.done] == ["i0", "i1"]
        writer.append([record(2)])
    assert [one.item for one in read_run(tmp_path).records] == ["i0", "i1", "i2"]


def test_another_run_is_refused_by_the_first_field_that_differs(tmp_path: Path) -> None:
    RunWriter(tmp_path, HEADER).__exit__()
    later = RunWriter(tmp_path, HEADER | {"started": "2027-01-01", "parity": {"ok": True, "seconds": 1}})
    later.__exit__()
    assert later.header == HEADER  # it began then, whoever goes on with it
    with pytest.raises(RecordsError, match=r"another budget_tokens \(64, now 128\)"):
        RunWriter(tmp_path, HEADER | {"budget_tokens": 128})
    with pytest.raises(RecordsError, match="another extra"):
        RunWriter(tmp_path, HEADER | {"extra": 1})


def test_a_record_is_written_once(tmp_path: Path) -> None:
    with RunWriter(tmp_path, HEADER) as writer:
        writer.append([record(0)])
        with pytest.raises(RecordsError, match="would be written twice"):
            writer.append([record(0)])
    with RunWriter(tmp_path, HEADER) as writer, pytest.raises(RecordsError, match="would be written twice"):
        writer.append([record(0)])


def test_a_full_disk_is_an_error_that_says_what_is_safe(tmp_path: Path) -> None:
    with RunWriter(tmp_path, HEADER) as writer:
        writer.append([record(0)])
    file = tmp_path / "records.jsonl"
    kept = file.rename(tmp_path / "kept")
    file.symlink_to("/dev/full")
    writer = RunWriter(tmp_path, HEADER)
    with pytest.raises(OSError, match="No space left on device; 0 records are safe, resume when there is room"):
        writer.append([record(1)])
    writer.__exit__()
    assert [one.item for one in read_records(kept)] == ["i0"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not a JSON object"),
        ("[1]", "not a JSON object but list"),
        ('{"task": "t", "item": "i", "seed": 0, "sample": 0}', "field 'correct' is missing"),
        ('{"task": "t", "item": "i", "seed": null, "sample": 0, "correct": 1}', "field 'seed' is null"),
        ('{"task": "t", "item": {}, "seed": 0, "sample": 0, "correct": 1}', "item is {}"),
        ('{"task": "t", "item": "i", "seed": 0, "sample": 0, "correct": 1, "flops": 1e308}', "flops is 1e+308"),
        ('{"task": "t", "item": "i", "seed": 0, "sample": 0, "correct": 1, "finished": 5}', "finished is 5"),
        ('{"task": "t", "item": "i", "seed": 0, "sample": 0, "correct": 1, "finished": "no"}', "finished is 'no'"),
        ('{"task": "t", "item": "i", "seed": 0, "sample": 0, "correct": 1, "finished": {}}', "finished is {}"),
        ('{"seed": ' + "9" * 5000 + "}", "not a JSON object"),
        ("[" * 100000, "not a JSON object"),
        ('{"task": "t", "item": "i", "seed": "a", "sample": 0, "correct": 1}', "seed is 'a'"),
        ('{"task": "t", "item": "i", "seed": 0, "sample": true, "correct": 1}', "sample is True"),
        ('{"task": "t", "item": "i", "seed": 0, "sample": 0, "correct": 0.5}', "correct is 0.5"),
        ('{"task": "t", "item": "i", "seed": 0, "sample": 0, "correct": "yes"}', "correct is 'yes'"),
        ('{"task": "t", "item": "i", "seed": 0, "sample": 0, "correct": 1, "flops": -1}', "flops is -1"),
        ('{"task": "t", "item": "i", "seed": 0, "sample": 0, "correct": 1, "flops": NaN}', "flops is nan"),
        ('{"task": "t", "item": "i", "seed": 0, "sample": 0, "correct": 1, "generated_tokens": "many"}', "generated_tokens is 'many'"),
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    good = record(0).to_json()
    file = tmp_path / "theirs.jsonl"
    file.write_text(f"{good}\n\n{line}\n")
    with pytest.raises(RecordsError, match=r"theirs.jsonl, line 3") as caught:
        read_run(file)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_hold_no_records_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\x00")
    for name, message in [("empty.jsonl", "holds no records"), ("binary.jsonl", "not UTF-8"), ("none.jsonl", "no such file")]:
        with pytest.raises(RecordsError, match=message):
            read_run(tmp_path / name)


def test_numbers_as_names_and_integers_as_booleans_are_read(tmp_path: Path) -> None:
    read = parse_record('{"task": "t", "item": 17, "seed": 0, "sample": 0, "correct": 1, "level": 5}', "here")
    assert read.item == "17" and read.correct is True and read.extra == {"level": 5}


def test_a_damaged_header_is_refused(tmp_path: Path) -> None:
    with RunWriter(tmp_path, HEADER) as writer:
        writer.append([record(0)])
    (tmp_path / "header.json").write_text("{")
    with pytest.raises(RecordsError, match=r"header.json is damaged"):
        read_run(tmp_path)


def test_one_process_writes_a_run(tmp_path: Path) -> None:
    with RunWriter(tmp_path, HEADER) as writer:
        with pytest.raises(RecordsError, match="another process is writing this run"):
            RunWriter(tmp_path, HEADER)
        writer.append([record(0)])
    with RunWriter(tmp_path, HEADER) as writer:
        assert len(writer.done) == 1


def test_a_run_with_a_record_twice_is_not_gone_on_with(tmp_path: Path) -> None:
    with RunWriter(tmp_path, HEADER) as writer:
        writer.append([record(0)])
    file = tmp_path / "records.jsonl"
    file.write_text(file.read_text() * 2)
    with pytest.raises(RecordsError, match="is there twice"):
        RunWriter(tmp_path, HEADER)


def test_a_byte_order_mark_and_windows_line_ends_are_read(tmp_path: Path) -> None:
    file = tmp_path / "theirs.jsonl"
    file.write_bytes(b"\xef\xbb\xbf" + record(0).to_json().encode() + b"\r\n" + record(1, finished=1).to_json().encode() + b"\r\n")
    assert [one.finished for one in read_records(file)] == [None, True]
