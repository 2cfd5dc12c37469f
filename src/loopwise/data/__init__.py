"""Text to score models on, and text to train them on: documents and mixtures of their windows; token shards and batches. No torch."""

from .batches import NO_LOSS, BatchSource, TokenBatch
from .chat_tokenizers import THINKING_TAGS, ChatTokenizer, ChatTokenizerChoice
from .chunks import Counts
from .conversations import CHAT_COLUMNS, QUESTION_AND_ANSWER, Conversation, Turn, read_conversation
from .decontaminating import decontaminate_sources
from .decontamination import EvaluationItem, ItemIndex, read_items
from .documents import DataError, Document, named_documents, standard_documents
from .files import read_documents
from .later import LaterBatches
from .mixture import Split, TextMixture, Window, balanced_mixture, check_fits
from .mixture_batches import MixtureBatches, planned_sizes
from .mixture_plan import MixturePlan
from .named_mixtures import NAMED_MIXTURES, ArloopMixture, named_mixture
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
from .packing import PackedSequences
from .parts import parse_training_sources
from .permutation import Permutation
from .shards import HELD_OUT_FOLDER, TokenizerFacts, TokenShards, TokenStream
from .sources import check_sources, read_sources
from .texts import check_texts, read_texts
from .tokenizing import TokenizeSettings, tokenize_sources
from .trace_batches import TraceBatches
from .trace_encoding import DROPS, TraceEncoder
from .trace_store import TraceFacts, TraceSet
from .traces import TraceSettings, encode_traces
from .training_mixture import Mixture, Stage, read_mixture, single_mixture

__all__ = [
    "CHAT_COLUMNS",
    "DROPS",
    "HELD_OUT_FOLDER",
    "NAMED_MIXTURES",
    "NO_LOSS",
    "QUESTION_AND_ANSWER",
    "TEXT_HASHES_FILE",
    "THINKING_TAGS",
    "ArloopMixture",
    "BatchSource",
    "ChatTokenizer",
    "ChatTokenizerChoice",
    "Conversation",
    "Counts",
    "DataError",
    "Document",
    "EvaluationItem",
    "ItemIndex",
    "LaterBatches",
    "Mixture",
    "MixtureBatches",
    "MixturePlan",
    "PackedSequences",
    "Permutation",
    "Split",
    "Stage",
    "TextHashes",
    "TextMixture",
    "TokenBatch",
    "TokenShards",
    "TokenStream",
    "TokenizeSettings",
    "TokenizerFacts",
    "TraceBatches",
    "TraceEncoder",
    "TraceFacts",
    "TraceSet",
    "TraceSettings",
    "Turn",
    "Window",
    "balanced_mixture",
    "check_fits",
    "check_sources",
    "check_texts",
    "decontaminate_sources",
    "encode_traces",
    "hash_documents",
    "named_documents",
    "named_mixture",
    "overlapping",
    "parse_training_sources",
    "planned_sizes",
    "read_conversation",
    "read_documents",
    "read_items",
    "read_mixture",
    "read_sources",
    "read_text_hashes",
    "read_texts",
    "shingle_hashes",
    "single_mixture",
    "standard_documents",
    "tokenize_sources",
    "used_documents",
    "without_wording",
    "write_text_hashes",
]
