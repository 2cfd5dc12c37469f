"""Models: loading, surgery, caches, sidecar files."""

from .caches import cache_argument, cache_of, dynamic_cache, static_cache
from .families import FAMILIES, Family, ModelError, decoder_layers, find_decoder
from .loading import (
    EMBEDDED,
    Loaded,
    Source,
    insert_on_disk,
    load,
    model_hash,
    resolve,
    resolve_dtype,
    resolve_loops,
    save,
    source_of,
    trained_loops,
)
from .memory import free_memory_bytes
from .packing import PACKED_TYPES, check_packing
from .passes import loop_passes
from .replay import Arguments, Iterates, Recorded, Replay, Run
from .sidecar import SIDECAR, Sidecar, read_sidecar
from .surgery import insert, inserted_loops, loops_of, remove

__all__ = [
    "EMBEDDED",
    "FAMILIES",
    "PACKED_TYPES",
    "SIDECAR",
    "Arguments",
    "Family",
    "Iterates",
    "Loaded",
    "ModelError",
    "Recorded",
    "Replay",
    "Run",
    "Sidecar",
    "Source",
    "cache_argument",
    "cache_of",
    "check_packing",
    "decoder_layers",
    "dynamic_cache",
    "find_decoder",
    "free_memory_bytes",
    "insert",
    "insert_on_disk",
    "inserted_loops",
    "load",
    "loop_passes",
    "loops_of",
    "model_hash",
    "read_sidecar",
    "remove",
    "resolve",
    "resolve_dtype",
    "resolve_loops",
    "save",
    "source_of",
    "static_cache",
    "trained_loops",
]
