"""ARLoop full and ARLoop sw: depth attention with an architecture's switches."""

from __future__ import annotations

from ..configuration import Architecture
from ..depth_attention import DepthAttention
from ..depth_attention_options import DepthAttentionOptions


def depth_attention(arch: Architecture) -> DepthAttention:
    """The depth attention of an architecture: `DepthAttention` has the equations."""
    start, stop = arch.span
    options = DepthAttentionOptions(
        block_size_sublayers=arch.block_size_sublayers or arch.num_hidden_layers,
        window_blocks=arch.window_blocks,
        running_block_in_window=arch.running_block_in_window,
        queries=arch.depth_queries,
        key_gain=arch.depth_key_gain,
        value_norm=arch.depth_value_norm,
        scale=arch.depth_scale,
        window_output=arch.window_output,
        key_eps=arch.depth_key_eps,
        backend=arch.depth_backend,
    )
    return DepthAttention(
        options,
        d_model=arch.hidden_size,
        num_sublayers=2 * arch.num_hidden_layers,
        num_loops=arch.num_loops,
        looped_sublayers=(2 * start, 2 * stop),
        norm_eps=arch.rms_norm_eps,
    )
