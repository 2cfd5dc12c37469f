"""Text as a loss evaluation reads it: tokens, and the hashes that two runs must share to be compared."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from ..data import Document
from ..scoring import ScoringError, TokenDocument, encode_document, start_token_id


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LossText:
    """Documents in one tokenizer's tokens; equal only to itself."""

    documents: tuple[TokenDocument, ...]
    """Those with at least one target."""
    num_left_out: int
    """Documents without a target."""
    start_token: str | None
    """What a document's first token is predicted from; None: it is not scored."""
    num_unknown: int
    """Targets that are the tokenizer's unknown token: bytes that the model never saw."""
    text_hash: str
    """Of names and texts, the same for every tokenizer. 16 hex digits."""
    tokens_hash: str
    """Of the token ids."""

    @property
    def num_targets(self) -> int:
        """Tokens that are predicted."""
        return sum(document.num_targets for document in self.documents)

    @property
    def num_bytes(self) -> int:
        """UTF-8 bytes that they stand for."""
        return sum(document.num_bytes for document in self.documents)


def encode_text(tokenizer: PreTrainedTokenizerBase, documents: Sequence[Document]) -> LossText:
    """Documents as tokens.

    Raises:
        ScoringError: no document with a token to predict, or as `encode_document`.
    """
    encoded = [encode_document(tokenizer, document.name, document.text) for document in documents]
    kept = tuple(document for document in encoded if document.num_targets)
    if not kept:
        raise ScoringError(f"none of {len(encoded)} documents has a token to predict; give longer documents")
    start, unknown = start_token_id(tokenizer), tokenizer.unk_token_id
    tokens = hashlib.sha256()
    for document in kept:
        tokens.update(f"{document.name} {len(document.token_ids)}\n".encode())
        tokens.update(document.token_ids.astype("<i4").tobytes())
    return LossText(
        documents=kept,
        num_left_out=len(encoded) - len(kept),
        start_token=None if start is None else str(tokenizer.convert_ids_to_tokens(start)),
        num_unknown=0 if unknown is None else sum(int((document.token_ids[1:] == unknown).sum()) for document in kept),
        text_hash=_hash_texts(documents),
        tokens_hash=tokens.hexdigest()[:16],
    )


def _hash_texts(documents: Sequence[Document]) -> str:
    digest = hashlib.sha256()
    for document in documents:
        digest.update(json.dumps([document.name, document.text]).encode())
    return digest.hexdigest()[:16]
