"""A cache whose keys and values grow in place, and which rows leave and join.

Hugging Face's dynamic slots join the whole past to each new token, a copy of the cache at every step. These slots keep room
to write into and hand out views of it. Whatever sets ``keys`` and ``values`` from outside, as reordering and selecting rows
do, is taken over at the next token.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer, DynamicSlidingWindowLayer, LinearAttentionLayer

from ..models import dynamic_cache

_SMALLEST_ROOM_TOKENS = 64


class Room:
    """Columns of shape (rows, heads, tokens, head size) with space for more."""

    __slots__ = ("_end", "_store")

    def __init__(self, columns: Tensor) -> None:
        self._store = columns
        self._end = columns.shape[2]

    def append(self, new: Tensor, keep: int) -> Tensor:
        """Write ``new`` behind the columns there; a view of the last ``keep`` of those and of ``new``."""
        end = self._end + new.shape[2]
        if end > self._store.shape[2]:
            end = keep + new.shape[2]
            room = new.new_empty((*new.shape[:2], max(2 * end, _SMALLEST_ROOM_TOKENS), new.shape[3]))
            room[:, :, :keep] = self._store[:, :, self._end - keep : self._end]
            self._store = room
        self._store[:, :, end - new.shape[2] : end] = new
        self._end = end
        return self._store[:, :, end - new.shape[2] - keep : end]


class GrowingLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """A slot of full attention."""

    _rooms: tuple[Room, Room] | None = None
    _handed_out: tuple[Tensor, Tensor] | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Add keys and values; all of them."""
        self._handed_out = self.keys, self.values = self._append(key_states, value_states)
        return self._handed_out

    def drop_left(self, num_columns: int) -> None:
        """Forget the first columns, which must be padding in every row."""
        if self.keys is not None and self.values is not None:
            self.keys, self.values = self.keys[:, :, num_columns:], self.values[:, :, num_columns:]

    def put_rows(self, rows: Tensor, other: GrowingLayer) -> None:
        """Overwrite these rows by those of ``other``, newest column on newest column; where it has more columns, all get them."""
        assert self.keys is not None and self.values is not None and other.keys is not None and other.values is not None
        columns = other.keys.shape[2]
        if (missing := columns - self.keys.shape[2]) > 0:
            self.keys, self.values = (pad(kept, (0, 0, missing, 0)) for kept in (self.keys, self.values))
        first = self.keys.shape[2] - columns
        self.keys[rows, :, first:] = other.keys
        self.values[rows, :, first:] = other.values

    def _append(self, key_states: Tensor, value_states: Tensor) -> tuple[Tensor, Tensor]:
        """Write keys and values behind those that ``keys`` and ``values`` hold; all of them."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.keys, self.values = key_states[:, :, :0], value_states[:, :, :0]
        assert self.keys is not None and self.values is not None
        if self._rooms is None or self._handed_out is None or self._handed_out[0] is not self.keys:
            self._rooms = Room(self.keys), Room(self.values)
        keep = self.keys.shape[2]
        return self._rooms[0].append(key_states, keep), self._rooms[1].append(value_states, keep)


class GrowingSlidingLayer(GrowingLayer, DynamicSlidingWindowLayer):  # type: ignore[no-untyped-call]
    """A slot of sliding-window attention: the last ``sliding_window - 1`` columns are kept."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Add keys and values; those that the new tokens may see, and the new ones."""
        keys, values = self._append(key_states, value_states)
        self.cumulative_length += key_states.shape[2]
        kept = -self.sliding_window + 1
        self._handed_out = self.keys, self.values = keys[:, :, kept:], values[:, :, kept:]
        return keys, values

    def put_rows(self, rows: Tensor, other: GrowingLayer) -> None:
        """As for full attention; both hold the last columns of their sequences, and the longer sequence is the batch's."""
        super().put_rows(rows, other)
        assert isinstance(other, GrowingSlidingLayer)
        self.cumulative_length = max(self.cumulative_length, other.cumulative_length)

    def drop_left(self, num_columns: int) -> None:
        """Forget the first columns of the sequence, which must be padding in every row."""
        if self.keys is not None and self.values is not None:
            self.cumulative_length -= num_columns
            gone = self.keys.shape[2] - min(self.cumulative_length, self.sliding_window - 1)
            self.keys, self.values = self.keys[:, :, gone:], self.values[:, :, gone:]


def decoding_cache(model: PreTrainedModel) -> Cache:
    """An empty cache for ``model`` with growing slots of attention; slots of other kinds are Hugging Face's own."""
    cache = dynamic_cache(model)
    cache.layers = [_growing(layer) for layer in cache.layers]
    return cache


def _growing(layer: Any) -> Any:
    if type(layer) is DynamicLayer:
        return GrowingLayer()  # type: ignore[no-untyped-call]
    if type(layer) is DynamicSlidingWindowLayer:
        return GrowingSlidingLayer(sliding_window=layer.sliding_window)
    return layer


def keep_rows(cache: Cache, rows: Tensor, padding_columns: int) -> int:
    """Keep these rows of a filled cache, without the leading columns that are padding in all of them.

    Returns:
        How many columns were dropped: ``padding_columns``, or none where a slot of attention cannot drop any.
    """
    cache.reorder_cache(rows)  # type: ignore[arg-type]  # every kind of slot knows it, convolution and recurrent states too
    growing = [layer for layer in cache.layers if isinstance(layer, GrowingLayer)]
    if padding_columns == 0 or len(growing) < sum(isinstance(layer, CacheLayerMixin) for layer in cache.layers):
        return 0
    for layer in growing:
        layer.drop_left(padding_columns)
    return padding_columns


def can_refill(cache: Cache) -> bool:
    """Whether `put_rows` knows every slot of ``cache``: growing attention, and linear attention with nothing beside it."""
    return all(isinstance(layer, GrowingLayer) or is_linear(layer) for layer in cache.layers)


def is_linear(layer: Any) -> bool:
    """Whether a slot holds the states of linear attention or a short convolution, and no keys."""
    return isinstance(layer, LinearAttentionLayer) and not isinstance(layer, CacheLayerMixin)


def put_rows(cache: Cache, rows: Tensor, other: Cache) -> None:
    """Overwrite these rows of a filled cache by those of ``other``, another filled cache of the same model.

    Both end in their newest column. Columns of the batch before a row's own are whatever they were: the mask hides them.
    """
    for ours, theirs in zip(cache.layers, other.layers, strict=True):
        if isinstance(ours, GrowingLayer):
            ours.put_rows(rows, theirs)  # type: ignore[arg-type]  # the same kind, of the same model
        else:
            put_states(ours, rows, theirs)


def drop_columns(cache: Cache, num_columns: int) -> None:
    """Forget the first columns of the sequences, padding in every row."""
    for layer in cache.layers:
        if isinstance(layer, GrowingLayer):
            layer.drop_left(num_columns)


def put_states(ours: Any, rows: Tensor, theirs: Any) -> None:
    """Overwrite these rows of a linear-attention slot, in place."""
    for mine, other in zip(states(ours), states(theirs), strict=True):
        mine[rows] = other


def states(layer: Any) -> list[Tensor]:
    """The filled states of a linear-attention slot: of convolutions, then recurrent ones."""
    held = [state for kind in (layer.conv_states, layer.recurrent_states) for state in kind.values()]
    return [state for state in held if state is not None]
