"""Decontamination of whole corpora: documents in, JSONL of those that are kept and a report out; in parallel and restartable."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .chunks import ENTRIES, ChunkWorker, Counts, Rows, read_entries, run_chunks
from .decontamination import ItemIndex, read_items, report_json
from .documents import DataError
from .folders import check_unused, locked, read_json, write_bytes, write_json
from .parts import bound_parts, parse_training_sources
from .streams import Part

REPORT_FILE = "report.json"
KEPT_FOLDER = "kept"

_FORMAT = 1
_PLAN_FILE = "decontamination_plan.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecontaminateWork:
    """What a worker process needs."""

    folder: Path
    items: tuple[str, ...]
    fields: tuple[str, ...]

    def open(self) -> ChunkWorker:
        """Index the items."""
        index = ItemIndex(read_items(self.items, self.fields))

        def keep(part: Part, name: str, rows: Rows) -> dict[str, Any]:
            kept: list[str] = []
            dropped: list[dict[str, Any]] = []
            for row, text in rows:
                if not text:
                    continue
                document = part.document_name(row)
                if hits := index.hits(text):
                    dropped.append({"document": document, "hits": [asdict(hit) for hit in hits]})
                else:
                    kept.append(json.dumps({"name": document, "text": text}, ensure_ascii=False) + "\n")
            if kept:
                own = self.folder / KEPT_FOLDER / part.source
                own.mkdir(parents=True, exist_ok=True)
                write_bytes(own / f"{name}.jsonl", "".join(kept).encode())
            return {"num_kept": len(kept), "dropped": dropped}

        return keep


def decontaminate_sources(
    specs: Sequence[str],
    items: Sequence[str],
    folder: str | Path,
    *,
    fields: Sequence[str] = (),
    rows_per_file: int = 4096,
    column: str | None = None,
    workers: int = 1,
    progress: Callable[[Counts], None] | None = None,
) -> dict[str, Any]:
    """Write the documents without a 13-gram of an item to ``kept/SOURCE/*.jsonl``, and ``report.json``; give the report.

    Rows without text are left out. A kept row is ``{"name": where it was, "text": ...}``; a folder of them is a source again.

    Args:
        specs: sources, as `parse_training_sources` reads them.
        items: evaluation items, as `read_items` reads them.

    Raises:
        DataError: text or items that cannot be read, or a folder that holds something else.
        OSError: the disk is full; what is done stays.
    """
    folder = Path(folder)
    if workers < 1 or rows_per_file < 1:
        raise DataError(f"workers is {workers}, rows_per_file {rows_per_file}; give at least 1 of each")
    sources = parse_training_sources(specs)
    found = read_items(items, fields)
    if not found:
        raise DataError("no evaluation items are given; name a .jsonl file of them")
    check_unused(folder, _PLAN_FILE)
    texts = [[item.benchmark, item.name, item.text] for item in found]
    digest = hashlib.sha256(json.dumps(texts).encode()).hexdigest()
    bound = {"format": _FORMAT, "items_sha256": digest, "rows_per_file": rows_per_file, "column": column}
    with locked(folder):
        parts = bound_parts(folder, _PLAN_FILE, bound, sources, rows_per_chunk=rows_per_file)
        if (folder / REPORT_FILE).exists():
            return read_json(folder / REPORT_FILE)
        work = DecontaminateWork(folder=folder, items=tuple(items), fields=tuple(fields))
        run_chunks(parts, work, folder, rows_per_chunk=rows_per_file, column=column, workers=workers, progress=progress)
        entries = read_entries(folder, parts)
        dropped = [document for entry in entries for document in entry["dropped"]]
        report = report_json(ItemIndex(found), dropped, sum(entry["num_kept"] for entry in entries) + len(dropped))
        write_json(folder / REPORT_FILE, report)
        shutil.rmtree(folder / ENTRIES)
        return report
