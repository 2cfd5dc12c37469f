"""Text to score models on: documents, and domain-balanced mixtures of their windows. No torch."""

from .documents import DataError, Document, named_documents, read_documents, standard_documents
from .mixture import Split, TextMixture, Window, balanced_mixture

__all__ = [
    "DataError",
    "Document",
    "Split",
    "TextMixture",
    "Window",
    "balanced_mixture",
    "named_documents",
    "read_documents",
    "standard_documents",
]
