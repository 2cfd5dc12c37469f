"""What a looped network is: one frozen value with every choice that its architecture has. No torch.

The values are flat because config.json is: a saved model's config holds these fields under the same names.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

MODEL_TYPE = "loopwise_looped"
"""The ``model_type`` under which the Auto classes of transformers know these networks."""

Design = Literal["prenorm", "sandwich", "deeploop", "parcae", "arloop"]
Operator = Literal["repeat", "damped"]
Activation = Literal["swiglu", "relu2"]
Init = Literal["scaled", "scaled_zero"]
Queries = Literal["effective", "physical"]
DepthBackend = Literal["reference", "fused", "two_phase", "fla"]


class NetError(ValueError):
    """A network that cannot be, or cannot be run as asked: the message names the thing, the value and the remedy in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """One looped decoder. The defaults are `sizes.NANO` with plain pre-norm residuals.

    Raises:
        NetError: a value that cannot be, or two that exclude each other.
    """

    vocab_size: int = 2048
    hidden_size: int = 192
    """The width d of the residual stream."""
    intermediate_size: int = 768
    num_hidden_layers: int = 4
    """Physical layers L, each an attention and an MLP sublayer."""
    num_attention_heads: int = 3
    num_key_value_heads: int = 3
    head_dim: int = 64
    max_position_embeddings: int = 2048
    """The longest sequence in training; the rotary embedding itself has no end."""
    tie_word_embeddings: bool = True

    activation: Activation = "relu2"
    """``swiglu``: W2(silu(W1 x) * W3 x). ``relu2``: W2(relu2_scale relu(W1 x)^2), of the Parcae and nanochat lineage."""
    relu2_scale: float = 0.5
    """The factor of ``relu2``; 0.5 in Parcae's code."""
    qk_norm: bool = True
    """Queries and keys are RMS-normalised over each head, without weights, after the rotary embedding (Parcae's code)."""
    rope_theta: float = 50000.0
    rms_norm_eps: float = 1e-5
    embedding_scale: float = 1.0
    """The token embedding is multiplied by this before the first layer; Huginn uses sqrt(d)."""
    init: Init = "scaled_zero"
    """``scaled``: truncated normal of std sqrt(2/(5d)), output projections divided by sqrt(2 x layer visits) (Huginn's rule).
    ``scaled_zero``: the same std, output projections zero (Parcae). DeepLoop has its own and reads neither.
    Parcae calls its draw truncated orthogonal, which is not defined in what is public; the truncated normal is a guess."""
    value_embeddings: bool = False
    """Every other layer (the last one among them) adds 2 sigmoid(W_g x[:32]) VE(token) to its values, one gate a KV head (Parcae,
    nanochat). ARLoop's parameter counts at 140M and 370M come out only with them; that they are its "value residuals" is a guess."""
    value_embedding_channels: int = 32
    """How many leading channels of the attention's input the gate reads."""
    value_residual: bool = False
    """Values become l1 V_1 + l2 V_n with two learned scalars a layer, V_1 those of the first layer in the first loop
    (ResFormer, arXiv 2410.17897)."""

    design: Design = "prenorm"
    """What carries the state from sublayer to sublayer."""
    num_loops: int = 1
    """The number of loops R that a forward pass runs unless told otherwise: the depth of training, or its maximum."""
    loop_start: int = 0
    """First layer of the looped span; the layers before it are the prelude."""
    loop_stop: int | None = None
    """One past the last layer of the looped span (half-open), the coda behind it; None is the whole stack."""
    operator: Operator = "repeat"
    """``repeat``: x <- g(x). ``damped``: beta g(x) + (1-beta) F^R(x), F(x) = x + (g(x) - x)/R (no-free-loop, A.1); where sequences
    have depths of their own, each with its own R."""
    beta: float | None = None
    """The anchor of ``damped``, in [0, 1]; None for ``repeat``."""
    input_injection: bool = False
    """Huginn's recurrence: every loop starts from A[state; e], e the prelude's output, and the first state is random."""
    initial_state_seed: int = 0
    """The seed of the random first state in evaluation, a function of seed, position and channel; in training it is fresh. A guess."""

    parcae_injection: bool = True
    """Parcae: whether Delta B N(e) is added between loops, beside the decay; e is the prelude's output, the embedding without one."""

    block_size_sublayers: int | None = None
    """ARLoop's block size S in sublayers; None is L, half a loop (ARLoop, Tables 5, 8 and 12)."""
    window_blocks: int | None = None
    """ARLoop sw's window W: the embedding and the W most recent blocks are read (3 in Table 8); None is the full history."""
    running_block_in_window: bool = True
    """Whether the block in the making counts among the W. The page does not say; this is a guess."""
    window_output: bool = True
    """Whether the read before the head is windowed as well. The page does not say; this is a guess."""
    depth_queries: Queries = "effective"
    """One query for every executed sublayer, loops beyond ``num_loops`` reusing the last one's, or one for every physical sublayer.
    The page leaves it open; this is a guess."""
    depth_key_gain: bool = False
    """A learned gain on the keys' norm. Public code differs; this is a guess."""
    depth_value_norm: bool = False
    """RMS-normalise the values that are mixed, too (transformers' inkling2_loop does; Kimi's and FLA's code does not). A guess."""
    depth_scale: float = 1.0
    """The factor of the depth logits: 1 in Kimi's and FLA's code, d^-1/2 in inkling2_loop. A guess."""
    depth_key_eps: float = 1e-5
    """The eps of the keys' norm. Public code differs; this is a guess."""
    depth_backend: DepthBackend = "fused"
    """How depth attention is computed: the same numbers at other costs. ``fla`` is for CUDA; elsewhere it computes as ``fused``."""

    def __post_init__(self) -> None:
        _check_kinds(self)
        _check_numbers(self)
        _check_loops(self)
        _check_design(self)

    @property
    def span(self) -> tuple[int, int]:
        """The looped layers, half-open."""
        return self.loop_start, self.num_hidden_layers if self.loop_stop is None else self.loop_stop

    @property
    def num_layer_visits(self) -> int:
        """Layers executed in one forward pass at ``num_loops``."""
        start, stop = self.span
        return self.num_hidden_layers + (self.num_loops - 1) * (stop - start)

    def has_value_table(self, layer: int) -> bool:
        """Whether the layer owns a table of value embeddings: every other one, counted from the last."""
        return self.value_embeddings and layer % 2 == (self.num_hidden_layers - 1) % 2

    def as_config(self) -> dict[str, Any]:
        """The contents of a config.json, without what transformers adds."""
        return {"model_type": MODEL_TYPE, **asdict(self)}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Architecture:
        """The architecture of a config.json; fields of transformers' own are passed over.

        Raises:
            NetError: as the class.
        """
        return cls(**{name: config[name] for name in FIELDS if name in config})


FIELDS = tuple(field.name for field in fields(Architecture))


def _check_kinds(arch: Architecture) -> None:
    choices = {"activation": Activation, "init": Init, "design": Design, "operator": Operator}
    choices |= {"depth_queries": Queries, "depth_backend": DepthBackend}
    for name, kind in choices.items():
        if getattr(arch, name) not in get_args(kind):
            raise NetError(f"{name} is {getattr(arch, name)!r}; use {', '.join(get_args(kind))}")
    for field in fields(Architecture):
        value = getattr(arch, field.name)
        whole = isinstance(value, int) and not isinstance(value, bool)
        if str(field.type) == "bool" and not isinstance(value, bool):
            raise NetError(f"{field.name} is {value!r}; give true or false")
        if str(field.type) in ("int", "int | None") and not (whole or (value is None and "None" in str(field.type))):
            raise NetError(f"{field.name} is {value!r}; give a whole number")
        if str(field.type) in ("float", "float | None") and not (_is_finite(value) or (value is None and "None" in str(field.type))):
            raise NetError(f"{field.name} is {value!r}; give a finite number")


def _is_finite(value: Any) -> bool:
    """Whether it is a number, and one that a float holds."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) <= sys.float_info.max


def _check_numbers(arch: Architecture) -> None:
    sizes = ("vocab_size", "hidden_size", "intermediate_size", "head_dim", "max_position_embeddings", "value_embedding_channels")
    for name in (*sizes, "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "num_loops"):
        if getattr(arch, name) < 1:
            raise NetError(f"{name} is {getattr(arch, name)}; give at least 1")
    if arch.num_attention_heads % arch.num_key_value_heads:
        raise NetError(f"{arch.num_attention_heads} heads do not share {arch.num_key_value_heads} KV heads evenly; give a divisor")
    if arch.head_dim % 2:
        raise NetError(f"head_dim is {arch.head_dim}; the rotary embedding needs an even one")
    for name in ("rope_theta", "rms_norm_eps", "depth_key_eps", "depth_scale", "embedding_scale", "relu2_scale"):
        if not getattr(arch, name) > 0:
            raise NetError(f"{name} is {getattr(arch, name)}; give a number above 0")
    if arch.value_embeddings and arch.value_embedding_channels > arch.hidden_size:
        raise NetError(f"value_embedding_channels is {arch.value_embedding_channels}, more than hidden_size {arch.hidden_size}; give less")


def _check_loops(arch: Architecture) -> None:
    start, stop = arch.span
    if not 0 <= start < stop <= arch.num_hidden_layers:
        raise NetError(f"looped span {start}:{stop} does not lie in {arch.num_hidden_layers} layers; give 0 <= start < stop <= layers")
    if (arch.operator == "damped") != (arch.beta is not None):
        raise NetError(f"operator {arch.operator} with beta={arch.beta}; damped needs a beta in [0, 1], repeat has none")
    if arch.beta is not None and not 0.0 <= arch.beta <= 1.0:
        raise NetError(f"beta is {arch.beta}; give a number in [0, 1]")
    if arch.operator == "damped" and arch.design in ("parcae", "arloop"):
        raise NetError(
            f"the damped update needs one residual state per loop, which {arch.design} has not; use prenorm, sandwich or deeploop"
        )
    if arch.input_injection and (arch.operator == "damped" or arch.design not in ("prenorm", "sandwich")):
        raise NetError(f"input_injection with {arch.design}, {arch.operator}; it runs in prenorm or sandwich, with operator repeat")


def _check_design(arch: Architecture) -> None:
    if arch.design != "arloop" and (arch.window_blocks is not None or arch.block_size_sublayers is not None):
        raise NetError(f"{arch.design} has no residual blocks; leave block_size_sublayers and window_blocks out, or use design arloop")
    if arch.block_size_sublayers is not None and arch.block_size_sublayers < 1:
        raise NetError(f"block_size_sublayers is {arch.block_size_sublayers}; give at least 1, or None for half a loop")
    if arch.window_blocks is not None and arch.window_blocks < 1:
        raise NetError(f"window_blocks is {arch.window_blocks}; give at least 1, or None for the full history")
