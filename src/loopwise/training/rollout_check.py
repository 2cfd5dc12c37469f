"""The check before the first step of reinforcement learning: rollout, trainer and reference are the model that is meant.

Engines that draw and engines that train differ more often than anybody notices, and a rollout that leaves the loop out trains
another model than the one that is evaluated. So layers are counted while each of the three runs, and log-probabilities compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from ..loops import Loop, call_sites, format_loops
from ..models import decoder_layers, find_decoder
from .rollouts import Rollout
from .settings import TrainingError

TOLERANCE_NATS = 0.02
"""The largest mean difference of the log-probabilities of drawn tokens."""

LogProbabilities = Callable[[Rollout], Sequence[Tensor]]
"""Of the drawn tokens of each row, in nats: one tensor [drawn tokens] a row."""


@dataclass(slots=True)
class LayerRuns:
    """How often the parts of a decoder ran."""

    forwards: int = 0
    layers: list[int] = field(default_factory=list)
    mlps: list[int] = field(default_factory=list)

    def per_forward(self) -> tuple[tuple[float, float], ...]:
        """Of each layer: runs as a whole and runs of its MLP half, in one forward pass."""
        return tuple((whole / self.forwards, mlp / self.forwards) for whole, mlp in zip(self.layers, self.mlps, strict=True))


@contextmanager
def counting_runs(model: nn.Module) -> Iterator[LayerRuns]:
    """Count, within it, the forward passes of the decoder in ``model`` and every run of its layers and their MLPs.

    Raises:
        ModelError: no decoder of a known family.
    """
    decoder, _ = find_decoder(model)
    layers = [layer for layer in decoder_layers(model)._modules.values() if layer is not None]
    runs = LayerRuns(layers=[0] * len(layers), mlps=[0] * len(layers))

    def count(counts: list[int], index: int) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            counts[index] += 1

        return hook

    def forward(*_: Any) -> None:
        runs.forwards += 1

    handles = [decoder.register_forward_pre_hook(forward)]
    for index, layer in enumerate(layers):
        mlp = layer.mlp
        assert isinstance(mlp, nn.Module)
        handles += [layer.register_forward_pre_hook(count(runs.layers, index)), mlp.register_forward_pre_hook(count(runs.mlps, index))]
    try:
        yield runs
    finally:
        for handle in handles:
            handle.remove()


def expected_runs(loops: Sequence[Loop], num_layers: int) -> tuple[tuple[float, float], ...]:
    """What `LayerRuns.per_forward` must give under some loops, by the account of call sites."""
    sites = call_sites(loops, num_layers)
    whole = [sum(site.layer == layer and site.part == "layer" for site in sites) for layer in range(num_layers)]
    mlp = [sum(site.layer == layer for site in sites) for layer in range(num_layers)]
    return tuple(zip(map(float, whole), map(float, mlp), strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutCheck:
    """What was compared before the first step, and how far apart it was."""

    num_tokens: int
    """Drawn tokens whose log-probabilities were compared."""
    tolerance_nats: float
    mean_difference_nats: float
    """Between rollout and trainer, of the absolute differences."""
    largest_difference_nats: float
    layer_runs: float
    """Runs of whole layers in one forward pass of the rollout, the same in trainer and reference."""
    mlp_runs: float
    """Runs of MLP halves, those of whole layers among them."""
    reference_difference_nats: float | None
    """Mean absolute difference between the trainer's reference and what it has to be; None without a reference."""


def check_rollout(
    model: nn.Module,
    loops: Sequence[Loop],
    *,
    rollout: Callable[[], Rollout],
    policy: LogProbabilities,
    reference: LogProbabilities | None,
    origin: LogProbabilities,
) -> RolloutCheck:
    """Check that rollout, trainer and reference run the loops, agree, and that the reference is what it has to be.

    Args:
        model: whose layers are counted.
        loops: what has to run; none of a twin.
        rollout: draws some answers, with the log-probabilities that drew them.
        policy: as the trainer computes them for its loss.
        reference: as the trainer computes them for its divergence; None where it has none.
        origin: of the model that the reference has to be, computed in another way.

    Raises:
        TrainingError: one of the three does not run the loops; rollout and trainer differ by more than 0.02 nats a token on average;
            or the reference does from its origin.
    """
    expected = expected_runs(loops, len(decoder_layers(model)))

    def counted(what: str, compute: Callable[[], Any]) -> Any:
        with counting_runs(model) as runs:
            found = compute()
        _check_runs(what, runs, expected, loops)
        return found

    drawn: Rollout = counted("rollout", rollout)
    mean, largest = _difference(drawn.log_probabilities, counted("trainer", lambda: policy(drawn)))
    if not mean <= TOLERANCE_NATS:
        raise TrainingError(
            f"rollout and trainer differ by {mean:.3g} nats a token on average over {drawn.num_tokens} tokens (at most "
            f"{TOLERANCE_NATS}): the answers would not be the trained model's; try --dtype fp32, or report the family and the loop"
        )
    apart = None
    if reference is not None:
        apart, _ = _difference(counted("reference", lambda: reference(drawn)), origin(drawn))
        if not apart <= TOLERANCE_NATS:
            raise TrainingError(
                f"the reference differs by {apart:.3g} nats a token from the model that reinforcement learning began with (at most "
                f"{TOLERANCE_NATS}): the divergence would be from another model; use LoRA, whose reference is the adapter switched off"
            )
    return RolloutCheck(
        num_tokens=drawn.num_tokens,
        tolerance_nats=TOLERANCE_NATS,
        mean_difference_nats=mean,
        largest_difference_nats=largest,
        layer_runs=sum(whole for whole, _ in expected),
        mlp_runs=sum(mlp for _, mlp in expected),
        reference_difference_nats=apart,
    )


def _check_runs(what: str, runs: LayerRuns, expected: tuple[tuple[float, float], ...], loops: Sequence[Loop]) -> None:
    if not runs.forwards:
        raise TrainingError(f"the {what} ran another model than the one that is trained; give the trainer the model itself, not its name")
    found = runs.per_forward()
    if found == expected:
        return
    layer = next(index for index, (ours, wanted) in enumerate(zip(found, expected, strict=True)) if ours != wanted)
    raise TrainingError(
        f"the {what} ran layer {layer} {found[layer][0]:g} times and its MLP {found[layer][1]:g} times a forward pass, "
        f"{format_loops(loops)} makes {expected[layer][0]:g} and {expected[layer][1]:g}: it is not the looped model that is meant; "
        "put the loops in before the trainer is made, and change no passes"
    )


def _difference(ours: Sequence[Any], theirs: Sequence[Any]) -> tuple[float, float]:
    """Mean and largest absolute difference over all tokens; NaN agrees with nothing.

    Raises:
        TrainingError: rows of different lengths, or no token at all.
    """
    found: list[float] = []
    for one, other in zip(ours, theirs, strict=True):
        if len(one) != len(other):
            raise TrainingError(f"log-probabilities of {len(one)} and of {len(other)} tokens of one answer; compare the same tokens")
        found += [abs(float(a) - float(b)) for a, b in zip(one, other, strict=True)]
    if not found:
        raise TrainingError("no token was drawn, so nothing can be compared; give prompts and a budget of at least one token")
    if any(value != value for value in found):
        return float("nan"), float("nan")
    return sum(found) / len(found), max(found)
