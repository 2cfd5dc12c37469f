"""Tokenizers with chat templates, and small sets of traces, for the tests of fine-tuning data."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from loopwise.data import ChatTokenizerChoice, TokenizerFacts, TraceFacts, TraceSet
from loopwise.data.text_tokenizers import ByteTokenizer
from loopwise.data.trace_encoding import EncodedTrace
from loopwise.data.trace_store import TraceShard, first_of_each, write_trace_index, write_trace_shard

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# As Qwen3's: thinking is shown in the last answer only, set on lines of its own; a switch closes an empty one in the prompt.
STRIPPING = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['role'] == 'assistant' and loop.last %}"
    "{% set said = message['content'].split('</think>') %}"
    "{{ '<think>\n' + (said[0].split('<think>')[-1].strip('\n') if said | length > 1 else '') + '\n</think>\n\n' + said[-1].lstrip('\n') }}"
    "{% else %}{{ message['content'].split('</think>')[-1].lstrip('\n') }}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"
)
# As DeepSeek-R1's: no answer's thinking is ever shown.
FORGETTING = CHATML.replace("message['content']", "message['content'].split('</think>')[-1]")
ENDLESS = CHATML.replace("<|im_end|>", "")

MARKS = ("<|im_start|>", "<|im_end|>")


def chat_folder(folder: Path, template: str | None = CHATML, *, pad: bool = True, merges: Sequence[str] = ()) -> ChatTokenizerChoice:
    """A tokenizer of bytes, with merges if some are given, the marks of ChatML, and a chat template."""
    import transformers

    ByteTokenizer().save(folder)
    values = json.loads((folder / "tokenizer.json").read_text())
    for merge in merges:
        values["model"]["vocab"][merge.replace(" ", "")] = len(values["model"]["vocab"])
        values["model"]["merges"].append(merge.split(" "))
    (folder / "tokenizer.json").write_text(json.dumps(values))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": list(MARKS)})
    tokenizer.pad_token = "<|endoftext|>" if pad else None
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return ChatTokenizerChoice(name=str(folder), label="bytes")


def write_chats(file: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """Rows as JSONL."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def made_traces(folder: Path, lengths: Sequence[int], *, vocabulary: int = 128, seed: int = 0, per_shard: int = 4) -> TraceSet:
    """A set of random traces of given lengths, no two alike, the second half of each trained on."""
    rng = np.random.default_rng(seed)
    tokenizer = TokenizerFacts(name="made", sha256="0" * 64, vocab_size=vocabulary, end_token_id=2)
    folder.mkdir(parents=True, exist_ok=True)
    entries = []
    for first in range(0, len(lengths), per_shard):
        traces = []
        for number, length in enumerate(lengths[first : first + per_shard], first):
            ids = rng.integers(3, vocabulary, size=length)
            ids[0] = 3 + number % (vocabulary - 3)
            traces.append(EncodedTrace(ids=ids, trained=np.arange(length) >= max(1, length // 2), num_turns_untrained=0))
        entries.append({"file": f"made-{first:03d}", "source": "made"} | write_trace_shard(folder, f"made-{first:03d}", traces, tokenizer))
    table, _ = first_of_each(entries)
    names = ("file", "source", "num_tokens", "tokens_sha256", "trained_sha256")
    shards = [TraceShard(**{name: entry[name] for name in names}) for entry in entries]
    facts = TraceFacts(tokenizer=tokenizer, template_sha256=None, end_of_turn_id=2, pad_token_id=0, sequence_tokens=max(lengths) - 1)
    write_trace_index(folder, facts, shards, table, {}, {})
    return TraceSet.open(folder)
