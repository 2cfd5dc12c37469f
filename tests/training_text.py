"""Small corpora and token shards for the tests of training data."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from loopwise.data import TokenizerFacts, TokenShards
from loopwise.data.shards import Shard, write_index, write_shard

FACTS = TokenizerFacts(name="made", sha256="0" * 64, vocab_size=5000, end_token_id=4999)


def write_rows(file: Path, num_rows: int, seed: int = 0) -> list[str]:
    """JSONL with texts of some words, no two alike; gives the texts."""
    rng = random.Random(seed)
    texts = [f"{seed}-{number} " + " ".join(f"w{rng.randrange(500)}" for _ in range(rng.randrange(1, 60))) for number in range(num_rows)]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return texts


def made_shards(folder: Path, sources: dict[str, Sequence[Sequence[int]]], facts: TokenizerFacts = FACTS) -> TokenShards:
    """Shards of documents with given lengths, several shards a source; their ids count up, so that each stretch is known."""
    folder.mkdir(parents=True, exist_ok=True)
    shards, first = [], 0
    for source, lengths in sources.items():
        for number, documents in enumerate(lengths):
            ids = []
            for length in documents:
                ids.append((first + np.arange(length)) % facts.end_token_id)
                first += length
            counts = write_shard(folder, f"{source}-{number}", ids, facts)
            shards.append(Shard(file=f"{source}-{number}", source=source, domain=source.partition(".")[0], **counts))
    write_index(folder, facts, shards, {})
    return TokenShards.open(folder)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file under a folder with its bytes, but for the lock and what names the folder itself."""
    files = sorted(file for file in folder.rglob("*") if file.is_file() and file.name not in ("lock", "config.json"))
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}
