"""Placement: the grid under its cap, and scores that sharing the first layers must not change by a bit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from loopwise.cost import cost_of, read_shape
from loopwise.data import TextMixture, Window
from loopwise.loops import Loop, LoopError, format_loops, parse_loops
from loopwise.models import decoder_layers, insert, loops_of, remove
from loopwise.placement import PlacementError, damped_grid, score_placements
from loopwise.scoring import score_text
from tiny import FAMILIES, tiny_config, tiny_model

SMOLLM2 = {
    "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
    "num_key_value_heads": 3, "head_dim": 64, "vocab_size": 49152, "tie_word_embeddings": True,
}  # fmt: skip
CANDIDATES = (
    "2:4 x2 damped beta=0.25",
    "2:5 x3",
    "0:2 x2 damped beta=0.5",
    "3:4 x2 damped beta=0",
    "1:5 x2 + 2.mlp x3 in pass 2",
    "4:6 x2",
)


def _sure(family: str) -> Any:
    """A tiny model whose logits are so large that text drawn from it has a temperature to fit."""
    model = tiny_model(family)
    with torch.no_grad():
        factor = 2.0 / model(input_ids=torch.arange(3, 100)[None]).logits.std()
    model.lm_head.register_forward_hook(lambda module, args, logits: factor * logits)
    return model


def _mixture(model: Any, num: int = 9, length: int = 25) -> TextMixture:
    """Text drawn from the model itself, the last window shorter."""
    torch.manual_seed(1)
    drawn = model.generate(torch.tensor([[5]] * num), do_sample=True, max_new_tokens=length - 1, min_new_tokens=length - 1).tolist()
    drawn[-1] = drawn[-1][: length // 2]
    windows = [Window(document=str(number), domain="drawn", token_ids=tuple(ids)) for number, ids in enumerate(drawn)]
    return TextMixture(fit=tuple(windows[:4]), score=tuple(windows[4:]))


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_are_bit_for_bit_those_of_the_looped_models_own_forward(family: str) -> None:
    model = _sure(family)
    mixture = _mixture(model)
    candidates = [parse_loops(text, 6) for text in CANDIDATES]
    scores = score_placements(model, candidates, mixture, stride=2, batch_size=4)
    assert scores.unlooped == score_text(model, mixture.token_ids("fit"), mixture.token_ids("score"), stride=2, batch_size=4)
    assert {p.loops for p in scores.placements} | {loops for loops, _ in scores.unscored} == set(candidates)
    assert len(scores.placements) >= 5, scores.unscored
    for placement in scores.placements:
        insert(model, placement.loops)
        slow = score_text(model, mixture.token_ids("fit"), mixture.token_ids("score"), stride=2, batch_size=4)
        remove(model)
        assert placement.score == slow
        assert np.array_equal(placement.score.losses, slow.losses)
        assert not np.array_equal(placement.score.losses, scores.unlooped.losses)


def test_layers_before_the_loop_run_once_for_all_candidates() -> None:
    model = _sure("llama")
    mixture = _mixture(model)
    runs = [0] * 6
    for number, layer in enumerate(decoder_layers(model)):
        layer.mlp.register_forward_hook(lambda *_, number=number: runs.__setitem__(number, runs[number] + 1))
    score_placements(model, [parse_loops(text) for text in ("3:5 x2", "3:5 x2 damped beta=0.5", "4:6 x2")], mixture, stride=2)
    assert runs == [2 * r for r in (1, 1, 1, 1 + 2 + 2, 1 + 2 + 2 + 2, 1 + 1 + 1 + 2)], "two batches, each layer as often as it must"


def test_the_model_comes_back_as_it_was() -> None:
    model = _sure("llama")
    mixture = _mixture(model)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(RuntimeError, match="stop"):
        score_placements(model, [parse_loops("3:5 x2")], mixture, stride=2, progress=_stop_at(3))
    score_placements(model, [parse_loops("3:5 x2")], mixture, stride=2)
    assert loops_of(model) == ()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    for layer in decoder_layers(model):
        assert "forward" not in layer.__dict__ and not layer._forward_hooks and not layer._forward_pre_hooks


def _stop_at(count: int) -> Any:
    def progress(done: int, total: int) -> None:
        if done == count:
            raise RuntimeError("stop")

    return progress


def test_differences_are_paired_by_position_and_sorted() -> None:
    model = _sure("llama")
    seen: list[tuple[int, int]] = []
    scores = score_placements(
        model, [parse_loops(text) for text in CANDIDATES], _mixture(model), stride=2, progress=lambda *counts: seen.append(counts)
    )
    perplexities = [placement.score.calibrated_perplexity for placement in scores.placements]
    assert perplexities == sorted(perplexities) and scores.best is scores.placements[0]
    for placement in scores.placements:
        differences = placement.score.losses.astype(float) - scores.unlooped.losses
        assert placement.difference_nats == pytest.approx(placement.score.loss_nats - scores.unlooped.loss_nats, abs=1e-6)
        assert placement.standard_error_nats == pytest.approx(np.std(differences, ddof=1) / math.sqrt(len(differences)))
        assert placement.layer_pass_ratio == cost_of(read_shape(tiny_config("llama").to_dict()), placement.loops).layer_pass_ratio
    assert seen == [(done, 2 * 7) for done in range(1, 15)]
    values = scores.to_json()
    assert values["placements"][0]["loops"] == format_loops(scores.best.loops) and len(values["mixture_sha256"]) == 64


def test_a_candidate_that_cannot_be_scored_is_named_and_has_no_score() -> None:
    model = _sure("llama")
    mixture = _mixture(model)
    broken = decoder_layers(model)[3].mlp
    broken.register_forward_hook(lambda *args: args[2] * math.nan if loops_of(model) and loops_of(model)[0].start == 3 else None)
    scores = score_placements(model, [parse_loops("3:5 x2"), parse_loops("1:2 x2")], mixture, stride=2)
    assert [format_loops(placement.loops) for placement in scores.placements] == ["1:2 x2"]
    [(loops, reason)] = scores.unscored
    assert format_loops(loops) == "3:5 x2" and "not finite" in reason
    with pytest.raises(PlacementError, match=r"none of 1 candidates could be scored; 3:5 x2: .*not finite"):
        score_placements(model, [parse_loops("3:5 x2")], mixture, stride=2)


def test_what_cannot_be_scored_is_refused() -> None:
    model = _sure("llama")
    mixture = _mixture(model)
    with pytest.raises(PlacementError, match="no candidates"):
        score_placements(model, [], mixture)
    with pytest.raises(PlacementError, match="no loop"):
        score_placements(model, [()], mixture)
    with pytest.raises(LoopError, match="6 layers"):
        score_placements(model, [parse_loops("4:9 x2")], mixture)
    insert(model, "1:2 x2")
    with pytest.raises(PlacementError, match=r"the model has the loops 1:2 x2"):
        score_placements(model, [parse_loops("4:5 x2")], mixture)


def test_the_grid_of_smollm2() -> None:
    shape = read_shape(SMOLLM2)
    grid = damped_grid(shape)
    assert len(grid) == len(set(grid)) == 30
    for (loop,) in grid:
        assert (loop.operator, loop.passes, loop.beta, loop.part) == ("damped", 2, 0.25, "layer")
        assert 0.45 <= (loop.start + loop.stop) / 60 <= 0.60
        assert 30 + (loop.stop - loop.start) <= 30 * 1.25
    assert {loop.stop - loop.start for (loop,) in grid} == {2, 3, 4, 5, 6, 7}
    assert (Loop(10, 17, 2, "damped", 0.25),) in grid and (Loop(9, 16, 2, "damped", 0.25),) not in grid


def test_more_passes_and_betas_under_the_same_cap() -> None:
    grid = damped_grid(read_shape(SMOLLM2), passes=3, betas=(0.25, 0.5))
    assert {loop.stop - loop.start for (loop,) in grid} == {2, 3}
    assert {loop.beta for (loop,) in grid} == {0.25, 0.5}


def test_a_thinned_grid_is_spread_over_the_whole() -> None:
    shape = read_shape(SMOLLM2)
    whole, thin = damped_grid(shape), damped_grid(shape, max_candidates=6)
    assert len(set(thin)) == 6 and [whole.index(loops) for loops in thin] == [2, 7, 12, 17, 22, 27]
    assert damped_grid(shape, max_candidates=99) == whole


def test_an_empty_grid_says_what_to_change() -> None:
    shape = read_shape(tiny_config("llama").to_dict())
    with pytest.raises(PlacementError, match=r"of 6 layers and costs at most 1\.25 times the plain model; the cheapest costs 1\.33"):
        damped_grid(shape)
    assert damped_grid(shape, max_layer_pass_ratio=1.34)
    with pytest.raises(PlacementError, match="max_candidates is 0"):
        damped_grid(shape, max_candidates=0)
