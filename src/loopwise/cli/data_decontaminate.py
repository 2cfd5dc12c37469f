"""``loopwise data decontaminate``: text without what evaluation items are in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .console import Progress, UsageError, print_json, save_config, table
from .data_progress import RowsProgress


@dataclass(frozen=True)
class Command:
    """Drop documents that share 13 lower-cased words in a row with an evaluation item; the same command goes on after a kill.

    Paraphrases are not found, nor items shorter than 13 words, which the report lists.

    Example: loopwise data decontaminate --text math.jsonl --items gsm8k=gsm8k/test.jsonl math500=math500/test.jsonl --out clean
    """

    text: tuple[str, ...] = ()
    """Sources, as loopwise data tokenize reads them."""
    items: tuple[str, ...] = ()
    """Evaluation items, [BENCHMARK=]FILE.jsonl."""
    out: Path | None = None
    """Folder for kept/SOURCE/*.jsonl and report.json."""
    field: tuple[str, ...] = ()
    """Fields of the items to compare; default: question, problem, prompt, text and the like."""
    column: str | None = None
    """The column that holds the text of documents."""
    rows_per_file: int = 4096
    """Rows of a source in one file of kept documents."""
    workers: int = 1
    """Processes that work at once."""
    json: bool = False
    """Print the report as JSON."""

    def run(self) -> None:
        if self.out is None:
            raise UsageError("give --out, the folder for kept documents and report")
        from ..data import decontaminate_sources

        progress = Progress(quiet=self.json)
        report = decontaminate_sources(
            self.text,
            self.items,
            self.out,
            fields=self.field,
            rows_per_file=self.rows_per_file,
            column=self.column,
            workers=self.workers,
            progress=RowsProgress(progress, "decontaminating"),
        )
        progress.close()
        save_config(self.out, "data decontaminate", self)
        if self.json:
            print_json(report)
            return
        names = ("num_texts", "num_too_short", "num_texts_found", "num_documents_dropped")
        rows = [(name, *(f"{counts[key]:,}" for key in names)) for name, counts in report["benchmarks"].items()]
        print(table(rows, ("benchmark", "texts", "too short", "found", "documents dropped")))
        print(f"\n{report['num_dropped']:,} of {report['num_documents']:,} documents dropped, {len(report['ngrams']):,} 13-grams found")
        print(f"kept: {self.out / 'kept'}\nreport: {self.out / 'report.json'}")
