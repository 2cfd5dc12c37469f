"""Decoding in fixed shapes: every step has the same rows and the same columns, so that it can be compiled once.

Each row writes its own next column: the cache's columns are the row's positions, there is no padding in it, and a row that ended
makes place for the next prompt without a move. A sliding-window slot is a ring of as many columns as its window. What a
step may see follows from the positions alone, so the masks are made inside the step. Prompts run eagerly, padded to a multiple
of `BUCKET_TOKENS`, and are copied into the slots.

With ``compiled`` the step goes through torch.compile; on CUDA with CUDA graphs (mode ``reduce-overhead``), which no test
here has run.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import cache as remembered
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin

from ..models import FAMILIES, PACKED_TYPES
from .batch import Batch
from .cache import GrowingLayer, GrowingSlidingLayer, can_refill, is_linear, put_states, states
from .values import DecodingError

BUCKET_TOKENS = 32
"""Prompts are padded to a multiple of it, so that few shapes occur. A guess between work on padding and the number of shapes."""
COLUMN_TOKENS = 128
"""The cache has a multiple of it as columns, so that runs of nearly the same length share a compiled step. A guess, likewise."""
_ATTENTION = ("sdpa", "eager")
_FULL, _SLIDING = "full_attention", "sliding_attention"


class PositionedSlot(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """A slot of attention whose row r writes at column ``positions[r]``, round and round where it has fewer columns."""

    is_compileable = True

    def __init__(self, filled: GrowingLayer, num_rows: int, num_columns: int, positions: Tensor) -> None:
        """Room for ``num_rows`` rows of the kind that ``filled`` holds."""
        super().__init__()
        assert filled.keys is not None and filled.values is not None
        self.is_sliding = isinstance(filled, GrowingSlidingLayer)
        self.num_columns = min(num_columns, filled.sliding_window) if isinstance(filled, GrowingSlidingLayer) else num_columns
        self.positions = positions
        self.keys, self.values = (
            kept.new_zeros(num_rows, kept.shape[1], self.num_columns, kept.shape[3]) for kept in (filled.keys, filled.values)
        )
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write one token a row; all columns, of which the mask hides those that the row has not written."""
        assert self.keys is not None and self.values is not None
        column = (self.positions % self.num_columns)[:, None, None, None]
        self.keys.scatter_(2, column.expand_as(key_states), key_states)
        self.values.scatter_(2, column.expand_as(value_states), value_states)
        return self.keys, self.values

    def load(self, rows: Sequence[int], filled: GrowingLayer, lengths: Sequence[int]) -> None:
        """Take over prompts of these lengths, which end in ``filled``'s newest column."""
        assert self.keys is not None and self.values is not None and filled.keys is not None and filled.values is not None
        held = filled.keys.shape[2]
        for place, (row, length) in enumerate(zip(rows, lengths, strict=True)):
            kept = min(length, held, self.num_columns)
            columns = torch.arange(length - kept, length, device=self.keys.device) % self.num_columns
            self.keys[row].index_copy_(1, columns, filled.keys[place, :, held - kept :])
            self.values[row].index_copy_(1, columns, filled.values[place, :, held - kept :])

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing is left to do."""

    def get_seq_length(self) -> int:
        """The columns: what a row has written differs by row."""
        return self.num_columns

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """All columns, from the first on."""
        return self.num_columns, 0

    def get_max_length(self) -> int:
        """The columns."""
        return self.num_columns

    get_max_cache_shape = get_max_length
    """Its name in earlier versions of transformers."""


def check_static(model: PreTrainedModel) -> None:
    """Refuse a model whose steps cannot run in fixed shapes.

    Raises:
        DecodingError: a family that this was not tested in, another attention than ``sdpa`` and ``eager``, or several devices.
    """
    config = model.config.get_text_config(decoder=True)
    known = config.model_type in PACKED_TYPES or any(type(module).__name__ in FAMILIES for module in model.modules())
    if not known:
        raise DecodingError(f"{type(model).__name__}: fixed shapes are not tested in this family; use the engine eager")
    attention = getattr(config, "_attn_implementation", None)
    if attention not in _ATTENTION:
        raise DecodingError(
            f"{type(model).__name__} runs {attention} attention; fixed shapes need {' or '.join(_ATTENTION)}: use engine eager"
        )
    if len(devices := {parameter.device for parameter in model.parameters()}) > 1:
        raise DecodingError(f"{type(model).__name__} lies on {len(devices)} devices; fixed shapes need one: use the engine eager")


class StaticBatch:
    """As `Batch`, with rows and columns that never change: rows are refilled and do not leave."""

    can_leave = False
    can_refill = True

    def __init__(
        self, model: PreTrainedModel, prompts: Sequence[Sequence[int]], *, num_rows: int, num_columns: int, pad_id: int, compiled: bool
    ) -> None:
        """Make the slots, and with ``compiled`` the compiled step.

        Args:
            num_rows: rows of every step; those that no prompt is in run along.
            num_columns: tokens of the longest row, prompt and answer, at least.

        Raises:
            DecodingError: a model that cannot.
        """
        check_static(model)
        self._model = model
        self._prompts = prompts
        self._pad_id = pad_id
        num_columns = -(-num_columns // COLUMN_TOKENS) * COLUMN_TOKENS
        self._last = num_columns - 1
        self._tokens = torch.full((num_rows, 1), pad_id, device=model.device)
        self._positions = torch.zeros(num_rows, dtype=torch.long, device=model.device)
        shown = Batch(model, [[pad_id]], 0, pad_id)
        shown.prefill()
        if not can_refill(shown.cache):
            kinds = ", ".join(sorted({type(layer).__name__ for layer in shown.cache.layers}))
            raise DecodingError(f"{type(model).__name__} keeps {kinds}; fixed shapes are not known for all of them: use the engine eager")
        self.cache = _static_cache(shown.cache, num_rows, num_columns, self._positions)
        self._cache_argument = shown.cache_argument
        self._dtype = next(model.parameters()).dtype
        self._columns = {
            _SLIDING if layer.is_sliding else _FULL: layer.num_columns for layer in self.cache.layers if isinstance(layer, PositionedSlot)
        }
        self._on_graphs = compiled and model.device.type == "cuda"
        if self._on_graphs:
            self._mark_addresses()
        self._step = compiled_step("reduce-overhead" if self._on_graphs else "default") if compiled else decode_step
        if compiled:
            self._run()  # compiles, before any prompt's time is taken and before any row is filled

    def prefill(self) -> Tensor:
        """Run the prompts into the first rows; the logits of each row's next token, shape (prompts, vocabulary)."""
        return self.refill(range(len(self._prompts)), self._prompts)

    def refill(self, rows: Sequence[int], prompts: Sequence[Sequence[int]]) -> Tensor:
        """Put new prompts into these rows; the logits of their next tokens."""
        filled = Batch(self._model, prompts, 0, self._pad_id, bucket_tokens=BUCKET_TOKENS)
        logits = filled.prefill()
        self.take_over(rows, filled, [len(prompt) for prompt in prompts])
        return logits

    def take_over(self, rows: Sequence[int], filled: Batch, lengths: Sequence[int]) -> None:
        """Copy prompts of these lengths, which ``filled`` has run, into these rows."""
        index = torch.tensor(list(rows), device=self._positions.device)
        for ours, theirs in zip(self.cache.layers, filled.cache.layers, strict=True):
            if isinstance(ours, PositionedSlot):
                ours.load(rows, theirs, lengths)  # type: ignore[arg-type]  # the same kind, of the same model
            else:
                put_states(ours, index, theirs)
        self._positions[index] = torch.tensor(list(lengths), device=index.device)

    def step(self, token_ids: Sequence[int]) -> Tensor:
        """Run one further token of each row; the logits of the next."""
        self._tokens[: len(token_ids), 0] = torch.tensor(token_ids, device=self._tokens.device)
        logits = self._run()[: len(token_ids)]
        self._positions.add_(1).clamp_(max=self._last)  # rows that ended run along, and may not run off
        return logits

    def keep(self, rows: Sequence[int]) -> Tensor:
        """Rows do not leave: `can_leave` says so."""
        raise DecodingError(f"rows cannot leave a static batch, and {len(rows)} were to stay")

    def _run(self) -> Tensor:
        if self._on_graphs:
            torch.compiler.cudagraph_mark_step_begin()
        named = {self._cache_argument: self.cache}
        return self._step(self._model, named, self._tokens, self._positions, self._columns, self._dtype)

    def _mark_addresses(self) -> None:
        """Tell CUDA graphs that these tensors stay where they are and are written in place."""
        held = [self._tokens, self._positions]
        for layer in self.cache.layers:
            kept = [layer.keys, layer.values] if isinstance(layer, PositionedSlot) else states(layer)
            held += [tensor for tensor in kept if tensor is not None]
        for tensor in held:
            torch._dynamo.mark_static_address(tensor, guard=False)


def decode_step(
    model: PreTrainedModel, cache: Mapping[str, Cache], tokens: Tensor, positions: Tensor, columns: Mapping[str, int], dtype: torch.dtype
) -> Tensor:
    """One step: tokens (rows, 1) at ``positions`` (rows,); the logits of the next, shape (rows, vocabulary).

    Args:
        cache: under the name that the model's forward takes it by.
        columns: how many columns each kind of attention has; a row sees those that it has written, this token's included.
        dtype: of the masks.
    """
    hidden = torch.finfo(dtype).min
    masks = {}
    for kind, number in columns.items():
        seen = torch.arange(number, device=positions.device)[None] <= positions[:, None]
        masks[kind] = torch.where(seen, 0.0, hidden).to(dtype)[:, None, None]
    # One mask goes to every layer; a family with both kinds takes one for each by name.
    mask = next(iter(masks.values())) if len(masks) == 1 else masks or None
    output = model(
        input_ids=tokens,
        attention_mask=mask,
        position_ids=positions[:, None],
        use_cache=True,
        logits_to_keep=1,
        **cache,
    )
    logits: Tensor = output.logits[:, -1]
    return logits


@remembered
def compiled_step(mode: str) -> Callable[..., Tensor]:
    """`decode_step` through torch.compile; one for all batches, so that equal shapes are compiled once."""
    return torch.compile(decode_step, dynamic=False, mode=mode)


def _static_cache(shown: Cache, num_rows: int, num_columns: int, positions: Tensor) -> Cache:
    """Slots like those of ``shown``, a filled cache of one row, call sites included."""
    rows = torch.zeros(num_rows, dtype=torch.long, device=positions.device)
    layers: list[Any] = []
    for layer in shown.layers:
        if is_linear(layer):
            layers.append(copy.deepcopy(layer))
            layers[-1].reorder_cache(rows)
        else:
            assert isinstance(layer, GrowingLayer)
            layers.append(PositionedSlot(layer, num_rows, num_columns, positions))
    cache = Cache(layers=layers)
    if (loops := getattr(shown, "slots_of_loops", None)) is not None:
        cache.slots_of_loops = loops  # type: ignore[attr-defined]
    return cache
