"""Tokenizers that shards are made with: plain bytes, any fast one of Hugging Face's, or a byte-level BPE trained on the text itself."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .documents import DataError
from .folders import write_json
from .shards import TOKENIZER_FOLDER, TokenizerFacts

BYTES = "bytes"
"""Names the tokenizer without a vocabulary: each byte of UTF-8 is its own id, 256 ends a document."""
END_TOKEN = "<|endoftext|>"
"""Of the tokenizers that are made here."""
LEAST_VOCABULARY = 257
"""Of a trained one: every byte and the end token."""

_ID_FIELDS = ("normalizer", "pre_tokenizer", "model", "added_tokens")


class TextTokenizer(Protocol):
    """Turns texts into ids, without marks at their ends."""

    @property
    def facts(self) -> TokenizerFacts:
        """What its ids depend on."""

    def encode(self, texts: Sequence[str]) -> list[NDArray[Any]]:
        """The ids of each text; what looks like a special token in a text is text."""

    def save(self, folder: Path) -> None:
        """Write it as a folder that transformers' AutoTokenizer loads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerChoice:
    """Which tokenizer, and its end token; can be sent to another process."""

    name: str
    """`BYTES`, a folder, or a hub id."""
    end_token: str | None = None
    """Ends documents; None is the tokenizer's own end-of-text token."""

    def load(self) -> TextTokenizer:
        """The tokenizer.

        Raises:
            DataError: there is none, or none that can be used.
        """
        if self.name == BYTES:
            return ByteTokenizer()
        return FastTokenizer(self.name, self.end_token)


class ByteTokenizer:
    """256 bytes and an end token. Needs no library; saved, it is a byte-level BPE without merges, whose ids are the same."""

    @property
    def facts(self) -> TokenizerFacts:
        """Its name, hash and size."""
        digest = hashlib.sha256(json.dumps(_byte_tokenizer_json(), sort_keys=True).encode()).hexdigest()
        return TokenizerFacts(name=BYTES, sha256=digest, vocab_size=257, end_token_id=256)

    def encode(self, texts: Sequence[str]) -> list[NDArray[Any]]:
        """The bytes of each text."""
        return [np.frombuffer(text.encode("utf-8"), dtype=np.uint8) for text in texts]

    def save(self, folder: Path) -> None:
        """Write it for transformers."""
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "tokenizer.json", _byte_tokenizer_json())
        write_json(folder / "tokenizer_config.json", _config_json())


class FastTokenizer:
    """A Hugging Face tokenizer of the fast kind, used as it is but for its marks at the ends of texts."""

    def __init__(self, name: str, end_token: str | None = None) -> None:
        """Load it from a folder or the hub.

        Raises:
            DataError: there is none, it is of the slow kind, or has no end token.
        """
        from tokenizers import Tokenizer

        loaded = load_fast(name)
        self._own, self._name = loaded, name
        self._end_id = end_id_of(loaded, name, end_token)
        self._fast = Tokenizer.from_str(loaded.backend_tokenizer.to_str())
        self._fast.no_truncation()
        self._fast.no_padding()
        # Text is text: an end token that somebody wrote into a document would end it.
        self._fast.encode_special_tokens = True

    @property
    def facts(self) -> TokenizerFacts:
        """Its name, hash and size."""
        return fast_facts(self._fast, self._name, self._end_id)

    def encode(self, texts: Sequence[str]) -> list[NDArray[Any]]:
        """The ids of each text."""
        encoded = self._fast.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(one.ids, dtype=np.int64) for one in encoded]

    def save(self, folder: Path) -> None:
        """Write it as it was loaded."""
        self._own.save_pretrained(folder)


def load_fast(name: str) -> Any:
    """A transformers tokenizer of the fast kind, from a folder or the hub; no code of its own is run.

    Raises:
        DataError: there is none, or it is of the slow kind.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the workers are processes already
    from transformers import AutoTokenizer

    try:
        loaded = AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())[:160]
        raise DataError(f"tokenizer {name!r}: cannot be loaded ({reason}); give a folder, a hub id, or {BYTES!r}") from None
    if not loaded.is_fast:
        raise DataError(f"tokenizer {name!r}: has no fast version (tokenizer.json), which is the only kind whose ids can be hashed")
    return loaded


def end_id_of(loaded: Any, name: str, end_token: str | None) -> int:
    """The id of a transformers tokenizer's end token: of the named one, or its own.

    Raises:
        DataError: there is none.
    """
    end_id = loaded.eos_token_id if end_token is None else loaded.get_vocab().get(end_token)
    if end_id is None:
        what = "has no end-of-text token of its own" if end_token is None else f"has no token {end_token!r}"
        raise DataError(f"tokenizer {name!r}: {what}; name one of its tokens as --end-token")
    return int(end_id)


def fast_facts(fast: Any, name: str, end_id: int) -> TokenizerFacts:
    """Name, hash and size of a ``tokenizers.Tokenizer``."""
    values = json.loads(fast.to_str())
    decisive = {field: values.get(field) for field in _ID_FIELDS} | {"end": end_id}
    digest = hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()
    vocab_size = max(fast.get_vocab(with_added_tokens=True).values()) + 1
    return TokenizerFacts(name=name, sha256=digest, vocab_size=vocab_size, end_token_id=end_id)


def train_tokenizer(texts: Iterable[str], vocab_size: int, folder: Path) -> None:
    """Train a byte-level BPE and save it for transformers.

    Raises:
        DataError: a vocabulary that is too small for all bytes, or too large for the text.
    """
    check_vocabulary(vocab_size)
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_TOKEN],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if (made := tokenizer.get_vocab_size()) < vocab_size:
        raise DataError(f"the text is enough for a vocabulary of {made}, not {vocab_size}; ask for that, or give more text")
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "tokenizer_config.json", _config_json())
    write_json(folder / "tokenizer.json", json.loads(tokenizer.to_str()))


def check_vocabulary(vocab_size: int) -> None:
    """Check the size of a vocabulary before text is read for it.

    Raises:
        DataError: too small.
    """
    if vocab_size < LEAST_VOCABULARY:
        raise DataError(f"a vocabulary of {vocab_size} has no room for every byte and an end token; give at least {LEAST_VOCABULARY}")


def save_beside(tokenizer: TextTokenizer, folder: Path) -> None:
    """Keep a tokenizer beside the shards it makes, whole or not at all."""
    _whole(folder, tokenizer.save)


def train_beside(texts: Iterable[str], vocab_size: int, folder: Path) -> None:
    """Train a tokenizer beside the shards it will make, whole or not at all.

    Raises:
        DataError: as `train_tokenizer`.
    """
    _whole(folder, lambda part: train_tokenizer(texts, vocab_size, part))


def _whole(folder: Path, make: Callable[[Path], None]) -> None:
    if not (folder / TOKENIZER_FOLDER).is_dir():
        part = folder / f"{TOKENIZER_FOLDER}.part"
        make(part)
        part.rename(folder / TOKENIZER_FOLDER)


def _config_json() -> dict[str, Any]:
    clean = {"clean_up_tokenization_spaces": False, "model_max_length": 10**9}
    return {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END_TOKEN} | clean


def _byte_tokenizer_json() -> dict[str, Any]:
    """A BPE of single bytes, in the signs that byte-level BPE writes bytes with (GPT-2's table)."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    signs = dict(zip(plain, plain, strict=True))
    for byte in range(256):
        signs.setdefault(byte, 256 + len(signs) - len(plain))
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    end = {"id": 256, "content": END_TOKEN, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    vocab = {chr(signs[byte]): byte for byte in range(256)} | {END_TOKEN: 256}
    options = {"dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [end],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {"type": "BPE", **options, "byte_fallback": False, "ignore_merges": False, "vocab": vocab, "merges": []},
    }
