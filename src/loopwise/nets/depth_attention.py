"""Depth attention as a residual design: ARLoop full and ARLoop sw.

There is no residual stream. A sublayer reads a mixture of the embedding, the finished residual blocks and the running one, with
weights softmax_n(w . RMSNorm(v_n)) that its learned query w gives, token by token (ARLoop, Figure 2; attention residuals,
arXiv 2603.15031)::

    h_l = sum_n softmax_n(w_l . RMSNorm(v_n)) v_n        z_l = f_l(RMSNorm(h_l))        b_n = sum of S branch outputs z

The output is such a mixture too, with a query of its own. Queries start at zero: all sources weigh the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .configuration import NetError
from .depth_attention_fla import FLA, ROW_ELEMENTS, reads_by_fla
from .depth_attention_functions import EAGER, MOST_COMPILED_SOURCES, ReadFunctions, compiled
from .depth_attention_fused import Source
from .depth_attention_options import DepthAttentionOptions
from .depth_attention_reference import compute_dtype
from .depth_attention_two_phase import BlockReads
from .norms import RMSNorm, make_norms
from .residual import ResidualDesign
from .schedule import Site


class DepthAttention(ResidualDesign):
    """The norms and the depth queries of a model of which a span of layers (or the whole stack) loops."""

    def __init__(
        self,
        options: DepthAttentionOptions,
        *,
        d_model: int,
        num_sublayers: int,
        num_loops: int,
        looped_sublayers: tuple[int, int] | None = None,
        norm_eps: float = 1e-5,
    ) -> None:
        """Make the parameters.

        Args:
            num_sublayers: physical sublayers, 2L.
            num_loops: loops that are trained, R: so many sets of effective queries.
            looped_sublayers: the physical sublayers that loop, half-open; None is the whole stack.

        Raises:
            NetError: a span outside the model, or what the backend cannot do.
        """
        super().__init__()
        self.options = options
        self.num_sublayers, self.num_loops, self.norm_eps = num_sublayers, num_loops, norm_eps
        self.start, self.stop = looped_sublayers or (0, num_sublayers)
        if not 0 <= self.start < self.stop <= num_sublayers or num_loops < 1:
            span = f"{num_loops} loops of the sublayers {self.start}:{self.stop}"
            raise NetError(f"depth attention: {span}; give at least 1 loop of a span in 0:{num_sublayers}")
        if options.backend == "fla" and options.key_eps != norm_eps:
            one = f"one eps for keys and output, and these are {options.key_eps} and {norm_eps}"
            raise NetError(f"depth attention: the fla backend has {one}; make them equal, or use fused")
        if options.backend == "fla" and d_model % ROW_ELEMENTS:
            raise NetError(f"depth attention: d_model is {d_model}; the fla backend needs a multiple of {ROW_ELEMENTS}, or use fused")
        further = (num_loops - 1) * (self.stop - self.start) if options.queries == "effective" else 0
        self.norms = make_norms(num_sublayers, d_model, norm_eps)
        self.final_norm = RMSNorm(d_model, eps=norm_eps)
        self.queries = nn.Parameter(torch.zeros(num_sublayers + further + 1, d_model))
        """One vector a row, the output's last. Rows are vectors: no weight decay, and no optimiser for matrices."""
        self.key_gains = nn.Parameter(torch.ones_like(self.queries)) if options.key_gain else None
        self._functions = EAGER

    def compile_reads(self, **options: Any) -> None:
        """Compile what is read and pushed, function by function, with options of ``torch.compile``."""
        self._functions = compiled(**options)

    def functions(self, num_sources: int) -> ReadFunctions:
        """What computes a read of so many sources."""
        return self._functions if num_sources <= MOST_COMPILED_SOURCES else EAGER

    def query_row(self, sublayer: int, loop: int) -> int:
        """Which row of ``queries`` run ``loop`` of a sublayer reads with."""
        trained = min(loop, self.num_loops) if self.options.queries == "effective" else 1
        return sublayer if trained == 1 else self.num_sublayers + (trained - 2) * (self.stop - self.start) + sublayer - self.start

    def effective_queries(self) -> tuple[Tensor, ...]:
        """Every row with its key gain and the scale in it, in single precision at least."""
        rows = self.queries.to(compute_dtype(self.queries))
        if self.key_gains is not None:
            rows = rows * self.key_gains
        return (rows * self.options.scale).unbind(0)

    def runs(self, num_loops: int) -> list[tuple[int, int]]:
        """Sublayer and loop of every effective sublayer of a forward pass of ``num_loops`` loops."""
        looped = [(sublayer, loop) for loop in range(1, num_loops + 1) for sublayer in range(self.start, self.stop)]
        return [(p, 1) for p in range(self.start)] + looped + [(p, 1) for p in range(self.stop, self.num_sublayers)]

    def begin(self, embedding: Tensor, num_loops: int, depths: Tensor | None = None) -> DepthAttentionStream:
        """Start a forward pass; the embedding's dtype is that of all sources.

        Raises:
            NetError: depths by sequence while a residual block holds sublayers of two loops.
        """
        size = self.options.block_size_sublayers
        if depths is not None and (self.start % size or (self.stop - self.start) % size):
            raise NetError(
                f"depth attention: blocks of {size} sublayers straddle the loops of the sublayers {self.start}:{self.stop}; "
                f"depths by sequence need a block size that divides both {self.start} and {self.stop - self.start}"
            )
        return DepthAttentionStream(self, embedding, num_loops, depths)


class DepthAttentionStream:
    """The sources of one forward pass, kept as a list: a block is added when its last sublayer has given its output."""

    def __init__(self, design: DepthAttention, embedding: Tensor, num_loops: int, depths: Tensor | None) -> None:
        self.design, self.options = design, design.options
        self.num_loops, self.depths = num_loops, depths
        self.dtype = embedding.dtype
        self.queries = design.effective_queries()
        self.runs = design.runs(num_loops)
        self.by_fla = self.options.backend == "fla" and reads_by_fla(embedding)
        self.num_pushed = 0
        self.blocks: list[Source | None] = [self._functions(1).source(embedding, self.options.key_eps)]
        self.running: Source | None = None
        self.block_reads: BlockReads | None = None

    def read(self, site: Site) -> Tensor:
        """The sublayer's mixture, normed.

        Raises:
            NetError: sublayers read in another order than that of their indices.
        """
        if site.index != self.num_pushed:
            raise NetError(f"depth attention: sublayer {site.index} is read after {self.num_pushed} outputs; read and push in order")
        query = self.queries[self.design.query_row(site.sublayer, site.loop)]
        weight: Tensor = self.design.norms[site.sublayer].weight  # type: ignore[assignment]
        with torch.autocast(self.device_type, enabled=False):
            after_loops = site.sublayer >= self.design.stop
            if self.depths is not None and after_loops:
                return self._read_by_depth(query, weight, is_output=False)
            if self.options.backend == "two_phase" and not after_loops:
                return self._block_reads().read(self.num_pushed % self.options.block_size_sublayers, self.running, weight)
            return self._mix(self._sources(self.options.sources(self.num_pushed)), query, weight)

    def push(self, site: Site, branch: Tensor) -> None:
        """Add a branch output to the running block."""
        branch, functions, eps = branch.to(self.dtype), self._functions(1), self.options.key_eps
        self.running = functions.source(branch, eps) if self.running is None else functions.add(self.running.value, branch, eps)
        self.num_pushed += 1
        if self.num_pushed % self.options.block_size_sublayers == 0:
            self.blocks.append(self.running)
            self.running, self.block_reads = None, None
            self._forget()

    def begin_loops(self) -> None:
        """Nothing is kept: the prelude's blocks are sources like all others."""

    def end_loop(self, loop: int) -> None:
        """Nothing acts between loops; a finished sequence's later blocks are masked in what is read after the loops."""

    def output(self) -> Tensor:
        """The output's mixture, normed."""
        query, weight = self.queries[-1], self.design.final_norm.weight
        with torch.autocast(self.device_type, enabled=False):
            if self.depths is not None:
                return self._read_by_depth(query, weight, is_output=True)
            return self._mix(self._sources(self.options.sources(self.num_pushed, is_output=True)), query, weight)

    @property
    def device_type(self) -> str:
        """The device type that reads compute on."""
        return self.queries[0].device.type

    def _functions(self, num_sources: int) -> ReadFunctions:
        return FLA if self.by_fla else self.design.functions(num_sources)

    def _sources(self, numbers: Sequence[int]) -> list[Source]:
        found = [self.running if number == len(self.blocks) else self.blocks[number] for number in numbers]
        sources = [source for source in found if source is not None]
        assert len(sources) == len(found), "a source was forgotten that a read still sees"
        return sources

    def _mix(self, sources: Sequence[Source], query: Tensor, weight: Tensor, visible: Sequence[Tensor | None] | None = None) -> Tensor:
        visible = visible or [None] * len(sources)
        functions = self._functions(len(sources))
        flags = {"norm_eps": self.design.norm_eps, "value_norm": self.options.value_norm, "visible": visible}
        if self.options.backend == "reference":
            return functions.reference([source.value for source in sources], query, weight, key_eps=self.options.key_eps, **flags)
        return functions.fused(sources, query, weight, **flags)

    def _read_by_depth(self, query: Tensor, weight: Tensor, *, is_output: bool) -> Tensor:
        """A read after the loops: blocks of loops that a sequence did not run are masked, and its window counts its own blocks."""
        assert self.depths is not None
        options, size = self.options, self.options.block_size_sublayers
        num_sources = len(self.blocks) + (self.running is not None)
        blocks_per_loop = (self.design.stop - self.design.start) // size
        first_skipped = self.design.start // size + 1 + self.depths * blocks_per_loop
        after_loops = self.design.start // size + 1 + self.num_loops * blocks_per_loop
        num_skipped = (self.num_loops - self.depths) * blocks_per_loop
        window = options.window_at(is_output=is_output)
        visible: list[Tensor | None] = []
        for number in range(num_sources):
            if (number == 0 and options.keep_embedding) or number == len(self.blocks):
                visible.append(None)
                continue
            ran = (first_skipped > number) | (number >= after_loops)
            if window is not None:
                place = number - num_skipped if number >= after_loops else number
                ran = ran & (place > options.newest_counted(self.num_pushed) - num_skipped - window)
            visible.append(ran)
        return self._mix(self._sources(range(num_sources)), query, weight, visible)

    def _block_reads(self) -> BlockReads:
        """The reads of the running block's sublayers, whose part in finished blocks is computed at the first of them."""
        if self.block_reads is None:
            size = self.options.block_size_sublayers
            first = self.num_pushed - self.num_pushed % size
            pushed = range(first, min(first + size, len(self.runs)))
            seen = [tuple(n for n in self.options.sources(count) if n < len(self.blocks)) for count in pushed]
            needed = sorted({number for numbers in seen for number in numbers})
            self.block_reads = BlockReads(
                self._sources(needed),
                [tuple(needed.index(number) for number in numbers) for numbers in seen],
                torch.stack([self.queries[self.design.query_row(*self.runs[index])] for index in pushed]),
                norm_eps=self.design.norm_eps,
                value_norm=self.options.value_norm,
                functions=self.design.functions(len(needed)),
            )
        return self.block_reads

    def _forget(self) -> None:
        """Let go of blocks that no later read can see."""
        options = self.options
        if options.window_blocks is None or not options.window_output or self.depths is not None:
            return
        for number in range(int(options.keep_embedding), len(self.blocks) - options.window_blocks):
            self.blocks[number] = None
