"""``loopwise data traces``: reasoning traces and chats into a set to fine-tune on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .console import Progress, UsageError, print_json, save_config, table
from .data_progress import RowsProgress

if TYPE_CHECKING:
    from ..data import ChatTokenizerChoice, TraceSet


@dataclass(frozen=True)
class Command:
    """Encode conversations with a model's chat template, trained on their answers alone; the same command goes on after a kill.

    No trace is cut: what is longer than a row is left out and counted, and so is what shares 13 words in a row with a test item.

    Example: loopwise data traces --text traces.jsonl --tokenizer smollm2 --sequence-tokens 4096 --out traces
    """

    text: tuple[str, ...] = ()
    """Sources, [[DOMAIN/]NAME=]LOCATION: a .jsonl, .jsonl.gz, .parquet or .txt file, a folder of them, or hub:ORG/NAME[:SPLIT]."""
    tokenizer: str | None = None
    """The model whose tokenizer and chat template encode: a folder, a hub id, or smollm2."""
    sequence_tokens: int = 4096
    """Inputs of a row: the longest trace that is kept has one token more."""
    out: Path | None = None
    """The folder of the set."""
    against: tuple[str, ...] = ()
    """Tasks, or [BENCHMARK=]FILE.jsonl, to keep apart from; default: gsm8k, math500, aime24, aime25, gpqa_diamond. none: nothing."""
    data: Path | None = None
    """Where the tasks' items are; default: LOOPWISE_DATA, then the hub."""
    question: str | None = None
    """The column that asks, where its name is not a known one; with --answer."""
    answer: str | None = None
    """The column that answers."""
    raw: bool = False
    """No chat template: each answer right behind its question, and the end token."""
    chat_template: Path | None = None
    """A Jinja file in place of the tokenizer's own template."""
    end_token: str | None = None
    """Ends plain text and raw answers; default: the tokenizer's own end of text."""
    pad_token: str | None = None
    """Fills rows; default: the tokenizer's own."""
    max_rows: int | None = None
    """Rows to read of each source; default: all."""
    rows_per_shard: int = 1024
    """Rows of a source in one shard."""
    workers: int = 1
    """Processes that work at once."""
    verify: bool = False
    """Check every shard against its hash at the end."""
    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        if self.out is None:
            raise UsageError("give --out, the folder of the set")
        if self.tokenizer is None:
            raise UsageError("give --tokenizer, the model that is to be trained: a folder, a hub id, or smollm2")
        if self.raw and self.chat_template is not None:
            raise UsageError("--raw uses no chat template; leave out --chat-template")
        from ..data import TraceSettings, encode_traces, parse_training_sources
        from ..recipes.evaluation_items import evaluation_items

        settings = TraceSettings(
            sources=self.text,
            sequence_tokens=self.sequence_tokens,
            raw=self.raw,
            question=self.question,
            answer=self.answer,
            max_rows=self.max_rows,
            rows_per_shard=self.rows_per_shard,
        )
        parse_training_sources(self.text)
        items, missing = evaluation_items(self.against, data=self.data)
        progress = Progress(quiet=self.json)
        for reason in missing:
            progress.note(f"not kept apart from {reason}")
        rows = RowsProgress(progress, "encoding")
        traces = encode_traces(settings, self._choice(self.tokenizer), self.out, items=items, workers=self.workers, progress=rows)
        if self.verify:
            for done, _ in enumerate(traces.verify(), 1):
                progress("verifying", done, len(traces.shards))
        progress.close()
        save_config(self.out, "data traces", self)
        if self.json:
            print_json(summary(traces))
        else:
            print(_text(traces))

    def _choice(self, name: str) -> ChatTokenizerChoice:
        from ..data import ChatTokenizerChoice

        folder = name
        if name == "smollm2":  # only this name needs the models' room, and torch with it
            from ..models.embedded import embedded_model

            folder = str(embedded_model())
        template = None
        if self.chat_template is not None:
            try:
                template = self.chat_template.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                raise UsageError(f"--chat-template {self.chat_template}: not UTF-8 text; give a Jinja file") from None
        return ChatTokenizerChoice(name=folder, label=name, end_token=self.end_token, pad_token=self.pad_token, template=template)


def summary(traces: TraceSet) -> dict[str, Any]:
    """What a set of traces holds and what was left out of it, as JSON."""
    facts = traces.facts
    return {
        "folder": str(traces.folder),
        "tokenizer": facts.tokenizer.name,
        "sequence_tokens": facts.sequence_tokens,
        "sha256": traces.sha256,
        "against": traces.settings["benchmarks"],
        **traces.report,
    }


def _text(traces: TraceSet) -> str:
    from ..data import DROPS

    found, folder = traces.report, traces.folder
    rows = [("read", f"{found['num_rows']:,}"), ("kept", f"{found['num_kept']:,}")]
    rows += [(words, f"{found[f'num_{reason}']:,}") for reason, words in DROPS.items() if found[f"num_{reason}"]]
    against = traces.settings["benchmarks"]
    apart = f"apart from {', '.join(against)}, report: {folder / 'decontamination.json'}" if against else "not decontaminated"
    lengths = f"half of the traces have {found['median_tokens']:,} or fewer, the longest {found['longest_tokens']:,}"
    lines = [
        table(rows, ("rows", "number")),
        "",
        f"{found['num_tokens']:,} tokens, {found['num_answer_tokens']:,} of them trained on; {lengths}",
        f"tokenizer {traces.facts.tokenizer.name}, rows of {traces.facts.sequence_tokens:,} tokens; {apart}",
    ]
    if untrained := found["num_turns_untrained"]:
        lines.append(f"{untrained:,} answers before the last are not trained on: the chat template shows them otherwise than given")
    lines += [f"left out, for example: {example}" for example in found["examples"].values()]
    return "\n".join([*lines, f"traces: {folder}"])
