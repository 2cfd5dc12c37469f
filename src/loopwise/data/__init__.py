"""Text to score models on: documents, and domain-balanced mixtures of their windows. No torch."""

from .documents import DataError, Document, named_documents, standard_documents
from .files import read_documents
from .mixture import Split, TextMixture, Window, balanced_mixture, check_fits
from .overlap import (
    TEXT_HASHES_FILE,
    TextHashes,
    hash_documents,
    overlapping,
    read_text_hashes,
    shingle_hashes,
    used_documents,
    without_wording,
    write_text_hashes,
)
from .sources import check_sources, read_sources

__all__ = [
    "TEXT_HASHES_FILE",
    "DataError",
    "Document",
    "Split",
    "TextHashes",
    "TextMixture",
    "Window",
    "balanced_mixture",
    "check_fits",
    "check_sources",
    "hash_documents",
    "named_documents",
    "overlapping",
    "read_documents",
    "read_sources",
    "read_text_hashes",
    "shingle_hashes",
    "standard_documents",
    "used_documents",
    "without_wording",
    "write_text_hashes",
]
