"""``loopwise data tokenize``: text into token shards."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .console import Progress, UsageError, print_json, save_config, table
from .data_progress import RowsProgress

if TYPE_CHECKING:
    from ..data import TokenShards


@dataclass(frozen=True)
class Command:
    """Turn text into token shards to train on; the same command goes on after a kill, and any number of workers gives the same bytes.

    Example: loopwise data tokenize --text web=web/ math=math.jsonl --tokenizer bytes --held-out 100 --workers 4 --out shards
    """

    text: tuple[str, ...] = ()
    """Sources, [[DOMAIN/]NAME=]LOCATION: a .jsonl, .jsonl.gz, .parquet or .txt file, a folder of them, or hub:ORG/NAME[:SPLIT[:COLUMN]]."""
    out: Path | None = None
    """The folder of shards."""
    tokenizer: str = "bytes"
    """A folder or hub id with a fast tokenizer, or bytes."""
    train_tokenizer: int | None = None
    """Train a byte-level BPE with so many ids on the text instead."""
    end_token: str | None = None
    """The token that ends documents; default: the tokenizer's own end of text."""
    held_out: int = 0
    """Documents of each source to keep out of training, in heldout/ beside the shards."""
    decontaminate: tuple[str, ...] = ()
    """Evaluation items, [BENCHMARK=]FILE.jsonl: leave out documents that share 13 words in a row with one."""
    field: tuple[str, ...] = ()
    """Fields of the items to compare; default: question, problem, prompt, text and the like."""
    column: str | None = None
    """The column that holds the text; default: text, messages, conversations, conversation or content."""
    max_rows: int | None = None
    """Rows to read of each source; default: all."""
    rows_per_shard: int = 4096
    """Rows of a source in one shard."""
    workers: int = 1
    """Processes that work at once."""
    verify: bool = False
    """Check every shard against its hash at the end."""
    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        if self.out is None:
            raise UsageError("give --out, the folder of shards")
        from ..data import TokenizeSettings, tokenize_sources

        settings = TokenizeSettings(
            sources=self.text,
            tokenizer=self.tokenizer,
            train_vocabulary=self.train_tokenizer,
            end_token=self.end_token,
            rows_per_shard=self.rows_per_shard,
            max_rows=self.max_rows,
            held_out=self.held_out,
            column=self.column,
            items=self.decontaminate,
            fields=self.field,
        )
        progress = Progress(quiet=self.json)
        rows = RowsProgress(progress, "tokenizing")
        shards = tokenize_sources(settings, self.out, workers=self.workers, progress=rows, note=progress.note)
        if self.verify:
            for done, _ in enumerate(shards.verify(), 1):
                progress("verifying", done, len(shards.shards))
        progress.close()
        save_config(self.out, "data tokenize", self)
        found = summary(shards)
        if self.json:
            print_json(found)
        else:
            print(_text(found, shards))


def summary(shards: TokenShards) -> dict[str, Any]:
    """What a folder of shards holds, as JSON."""
    sources = []
    for name, domain in shards.sources.items():
        own = [shard for shard in shards.shards if shard.source == name]
        counts = {"num_tokens": sum(shard.num_tokens for shard in own), "num_documents": sum(shard.num_documents for shard in own)}
        sources.append({"source": name, "domain": domain, "num_shards": len(own)} | counts)
    names = ("num_rows", "num_empty", "num_held_out", "num_dropped")
    return {
        "folder": str(shards.folder),
        "tokenizer": shards.tokenizer.name,
        "vocab_size": shards.tokenizer.vocab_size,
        "sha256": shards.sha256,
        "num_tokens": shards.num_tokens,
        **{name: shards.settings[name] for name in names},
        "sources": sources,
    }


def _text(found: dict[str, Any], shards: TokenShards) -> str:
    counts = ("num_shards", "num_documents", "num_tokens")
    rows = [(one["source"], one["domain"], *(f"{one[name]:,}" for name in counts)) for one in found["sources"]]
    left = f"left out: {found['num_empty']:,} without text, {found['num_held_out']:,} held out, {found['num_dropped']:,} contaminated"
    return (
        table(rows, ("source", "domain", "shards", "documents", "tokens"))
        + f"\n\n{shards.num_tokens:,} tokens, tokenizer {shards.tokenizer.name} with {shards.tokenizer.vocab_size:,} ids"
        + f"\n{left}\nshards: {shards.folder}"
    )
