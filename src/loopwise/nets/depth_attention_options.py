"""What depth attention leaves open, and which residual sources a read sees. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from .configuration import DepthBackend, NetError, Queries


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthAttentionOptions:
    """The switches of attention residuals (Kimi Team, arXiv 2603.15031) as ARLoop uses them.

    The sources of a read are the token embedding e (source 0), the finished residual blocks b_n = the sum of the branch outputs
    z of S sublayers in a row (sources 1, 2, ..), and the running sum of the block that is not finished.

    Raises:
        NetError: a size below 1, an eps that is not positive, a word that no field knows, or what a backend cannot do.
    """

    block_size_sublayers: int = 6
    """S, the sublayers of one residual block. ARLoop, Table 8: 6 at 140M and 12 at 370M, half a loop each; Table 12: 18 and 24.
    1 is full attention residuals, every branch output a source of its own."""
    window_blocks: int | None = None
    """W, how many of the newest blocks a read sees; None is the full history (ARLoop full). ARLoop sw takes 3 (Table 11)."""
    running_block_in_window: bool = True
    """Whether the running block counts as one of the W. A guess: ARLoop speaks of "a window of recent residual sources" and "the three
    most recent blocks", and does not say."""
    keep_embedding: bool = True
    """Whether the embedding stays in sight of a window ("the input embedding is always retained", ARLoop, Table 11). Otherwise it is
    the oldest block and leaves the window as one, which no paper does."""
    queries: Queries = "effective"
    """``effective``: a query for each run of each sublayer; loops beyond the trained depth read with the last loop's. ``physical``: a
    query for each sublayer, the same in all loops. A guess: Table 5 ("at each effective sublayer") speaks for the first, Figure 10
    (R = 1 to 8 from one checkpoint) and all public code for the second."""
    key_gain: bool = False
    """Whether the keys' norm has a learned gain; it enters as the product with the query only. A guess: public code is divided."""
    value_norm: bool = False
    """Whether the values are RMS-normed as the keys are. Off in arXiv 2603.15031 and its ports; one public looped model does it."""
    scale: float = 1.0
    """What multiplies the scores: 1 in arXiv 2603.15031 and its ports, d^-1/2 in one public looped model."""
    window_output: bool = True
    """Whether the window holds for the output read too. A guess: nobody says."""
    key_eps: float = 1e-5
    """Added to a key's mean square. A guess: public code goes from 1.2e-7 to 1e-6; where branches start at zero, gradients into the sources
    grow with eps^-1/2, so a larger one is taken."""
    backend: DepthBackend = "fused"
    """How reads are computed, never what. ``reference``: plain operations. ``fused``: read and norm in one function that keeps no
    mixture for the backward pass. ``two_phase``: a block's reads of finished blocks at once, each read once a block instead of once a
    sublayer, with one tensor more kept a sublayer. ``fla``: flash-linear-attention's kernels on CUDA, and ``fused`` elsewhere."""

    def __post_init__(self) -> None:
        faults = [
            (self.block_size_sublayers < 1, f"block_size_sublayers is {self.block_size_sublayers}; give at least 1 sublayer"),
            (self.window_blocks is not None and self.window_blocks < 1, f"window_blocks is {self.window_blocks}; give 1 or more, or None"),
            (not self.key_eps > 0, f"key_eps is {self.key_eps}; give a positive number, e.g. 1e-5"),
            (self.queries not in ("effective", "physical"), f"queries is {self.queries!r}; use effective or physical"),
            (not self.scale > 0, f"scale is {self.scale}; give a positive number, 1 or d_model ** -0.5"),
            (self.backend not in get_args(DepthBackend), f"backend is {self.backend!r}; use {', '.join(get_args(DepthBackend))}"),
            (self.backend == "fla" and self.value_norm, "the fla backend does not normalise values; use fused, or leave value_norm off"),
        ]
        for wrong, message in faults:
            if wrong:
                raise NetError(f"depth attention: {message}")

    def newest_counted(self, num_pushed: int) -> int:
        """The newest source that the window counts, once ``num_pushed`` sublayers have given their outputs."""
        finished, rest = divmod(num_pushed, self.block_size_sublayers)
        return finished + (rest > 0 and self.running_block_in_window)

    def window_at(self, *, is_output: bool) -> int | None:
        """The blocks that the window of this read holds; None is all."""
        return None if is_output and not self.window_output else self.window_blocks

    def sources(self, num_pushed: int, *, is_output: bool = False) -> tuple[int, ...]:
        """The sources that a read sees once ``num_pushed`` sublayers have given their outputs, oldest first.

        0 is the embedding, n the n-th block; the block after the last finished one is the running one.
        """
        finished, rest = divmod(num_pushed, self.block_size_sublayers)
        window = self.window_at(is_output=is_output)
        oldest = 0 if window is None else self.newest_counted(num_pushed) - window + 1
        kept = (n for n in range(finished + 1) if n >= oldest or (n == 0 and self.keep_embedding))
        return (*kept, finished + 1) if rest else tuple(kept)
