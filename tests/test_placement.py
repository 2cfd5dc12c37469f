"""What candidates share must not change their scores: by no bit one by one, by 1e-6 side by side."""

from __future__ import annotations

import gc
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from loopwise.cost import cost_of
from loopwise.data import TextMixture
from loopwise.loops import Loop, format_loops
from loopwise.models import decoder_layers, insert, loops_of, remove
from loopwise.placement import GenericText, PlacementError, Scored, SharedText, TextScorer, objective_named, text_computer
from loopwise.placement.sharing import MOST_SIDE_BY_SIDE, ROWS_TOKENS
from loopwise.scoring import ScoringError, model_forward, score_batches
from placement_text import drawn_text, generic_logits, generic_score, loops_from, shape_of, sure_model
from tiny import FAMILIES

SINGLE = (
    "2:4 x2 damped beta=0.25",
    "2:4 x2 damped beta=0.75",
    "2:4 x3 damped beta=0.25",
    "2:4 x2",
    "2:4 x3",
    "0:2 x2 damped beta=0.5",
    "3:4 x2 damped beta=0",
    "4:6 x2",
)
STRUCTURES = (
    *SINGLE,
    "0:2 x2 damped beta=0.5 + 3:4 x2 damped beta=0.25",
    "0:2 x2 damped beta=0.75 + 3:4 x2 damped beta=0.25",
    "0:2 x2 + 3:4 x3",
    "1:5 x2 damped beta=0.25 + 2.mlp x3",
    "1:5 x2 damped beta=0.5 + 2.mlp x3",
    "1:5 x2 + 2.mlp x3 in pass 1",
    "1:5 x3 + 2.mlp x3 in pass 1",
    "1:4.mlp x2 damped beta=0.5",
    "1:4.mlp x2 damped beta=0.25",
    "2.mlp x3",
    "2.mlp x2 + 4.mlp x2 damped beta=0.5",
)
LOOSE = 1e-6


def scorer_of(computer: Any, family: str = "llama", **more: Any) -> TextScorer:
    return TextScorer(computer, shape_of(family), **more)


def score_all(scorer: TextScorer, candidates: Sequence[tuple[Loop, ...]], share: float = 1.0) -> dict[str, Scored]:
    groups = scorer.computer.groups(candidates)
    assert all(1 <= len(group) <= scorer.computer.max_group for group in groups)
    return {scored.result.loops: scored for group in groups for scored in scorer.score(group, share)}


def batches_of(model: Any, mixture: TextMixture, **more: Any) -> Any:
    return text_computer(model, mixture, stride=2, batch_windows=4, **more)


@pytest.mark.parametrize("family", FAMILIES)
def test_one_by_one_scores_are_bit_for_bit_those_of_the_looped_models_own_forward(family: str) -> None:
    model = sure_model(family)
    shared = batches_of(model, drawn_text(model), max_group=1)
    assert isinstance(shared, SharedText)
    scorer = scorer_of(shared, family)
    wanted = loops_from(*(STRUCTURES if family in ("llama", "qwen3_5", "gemma3", "gpt2", "qwen3_moe") else STRUCTURES[::4]))
    found = score_all(scorer, wanted)
    plain = generic_score(model, (), shared.fit, shared.score)
    assert np.array_equal(scorer.unlooped().losses, plain.losses)
    compared = 0
    for candidate in wanted:
        scored = found[format_loops(candidate)]
        try:
            own = generic_score(model, candidate, shared.fit, shared.score, start=scorer.start_temperature)
        except ScoringError as error:
            assert scored.result.status == "ruined" and scored.result.reason == str(error)
            continue
        compared += 1
        assert scored.losses is not None and np.array_equal(scored.losses, own.losses), format_loops(candidate)
        assert not np.array_equal(scored.losses, plain.losses)
        values = scored.result.values
        assert values["temperature"] == own.temperature
        assert (values["perplexity"], values["calibrated_perplexity"]) == (own.perplexity, own.calibrated_perplexity)
        insert(model, candidate)
        usual = score_batches(model_forward(model), shared.fit, shared.score)  # its temperature is fitted from another start
        remove(model)
        assert abs(math.log(values["temperature"] / usual.temperature)) <= 1e-4 and values["perplexity"] == usual.perplexity
        assert abs(values["loss_nats"] - usual.loss_nats) < 1e-4
    assert compared >= 0.75 * len(wanted)


@pytest.mark.parametrize("family", ["llama", "qwen3_5", "gemma3", "gpt2", "qwen3_moe"])
def test_side_by_side_scores_agree_to_a_millionth(family: str) -> None:
    model = sure_model(family)
    mixture, wanted = drawn_text(model), loops_from(*STRUCTURES)
    alone, beside = batches_of(model, mixture, max_group=1), batches_of(model, mixture, max_group=5)
    groups = beside.groups(wanted)
    assert sorted(map(format_loops, sum(groups, ()))) == sorted(map(format_loops, wanted)) and max(map(len, groups)) == 5
    first, second = score_all(scorer_of(alone, family), wanted), score_all(scorer_of(beside, family), wanted)
    assert sum(scored.losses is not None for scored in first.values()) >= 0.75 * len(wanted)
    for loops, scored in first.items():
        assert scored.result.status == second[loops].result.status
        assert scored.result.values == pytest.approx(second[loops].result.values, abs=LOOSE, rel=LOOSE)
    for group in groups:
        for batch in (beside.fit[0], beside.score[-1]):
            for candidate, kept in zip(group, beside.kept(group, batch), strict=True):
                [own] = alone.kept([candidate], alone.fit[0] if batch is beside.fit[0] else alone.score[-1])
                assert (kept - own).abs().max() <= LOOSE * own.abs().max(), format_loops(candidate)


def test_states_in_a_file_give_the_same_bits(tmp_path: Path) -> None:
    model = sure_model()
    mixture, wanted = drawn_text(model), loops_from(*STRUCTURES[:6])
    needed = _least_memory(model, mixture, batch_windows=1)
    in_memory = text_computer(model, mixture, stride=2, batch_windows=1, max_group=1)
    spilled = text_computer(model, mixture, stride=2, batch_windows=1, max_group=1, memory_bytes=needed, folder=tmp_path)
    assert isinstance(spilled, SharedText) and isinstance(in_memory, SharedText) and in_memory._file is None
    assert spilled._file is not None and not list(tmp_path.iterdir()), "no name that a killed process would leave"
    assert str(tmp_path) in Path("/proc/self/maps").read_text()
    states = sum(7 * batch.input_ids.numel() * 32 * 4 for batch in (*spilled.fit, *spilled.score))
    assert states <= spilled._file._mapped.numel() <= states + 64 * 7 * 9
    first, second = score_all(scorer_of(in_memory), wanted), score_all(scorer_of(spilled), wanted)
    for loops, scored in first.items():
        assert scored.losses is not None and np.array_equal(scored.losses, second[loops].losses)
    del spilled, in_memory
    gc.collect()
    assert str(tmp_path) not in Path("/proc/self/maps").read_text(), "the room goes with the states"


def _least_memory(model: Any, mixture: TextMixture, batch_windows: int = 4) -> int:
    low, high = 1, 1 << 30
    while high - low > 1:
        middle = (low + high) // 2
        try:
            text_computer(model, mixture, stride=2, batch_windows=batch_windows, max_group=1, memory_bytes=middle)
            high = middle
        except PlacementError:
            low = middle
    return high


def test_memory_sets_how_many_run_side_by_side_and_too_little_is_refused_in_one_line() -> None:
    model = sure_model()
    mixture = drawn_text(model)
    least = _least_memory(model, mixture)
    groups = [batches_of(model, mixture, memory_bytes=factor * least).max_group for factor in (1, 2, 3, 4, 10)]
    assert groups[0] == 1 and groups == sorted(groups) and 4 <= groups[-1] < 20
    roomy = batches_of(model, mixture)
    assert roomy.max_group == min(MOST_SIDE_BY_SIDE, ROWS_TOKENS // roomy.fit[0].input_ids.numel())
    with pytest.raises(
        PlacementError, match=r"one candidate needs about .* GB at work and .* GB are allowed; give --memory-gb more"
    ) as caught:
        batches_of(model, mixture, memory_bytes=least - 1)
    assert "\n" not in str(caught.value)


def test_what_is_held_does_not_grow_with_the_number_of_candidates() -> None:
    model = sure_model()
    scorer = scorer_of(batches_of(model, drawn_text(model), max_group=3))
    first, others = (
        loops_from(*(f"{start}:{start + 2} x{k} damped beta={beta}" for start in range(4) for k in (2, 3) for beta in betas))
        for betas in ((0.25, 0.5, 0.75), (0.1, 0.2, 0.3, 0.4, 0.6, 0.7, 0.8, 0.9))
    )
    held = []
    for wanted in (first, first, others):
        score_all(scorer, wanted)
        gc.collect()
        held.append(sum(one.numel() for one in gc.get_objects() if type(one) is torch.Tensor))
    assert held[2] <= held[1], "what the layers are given is kept for every group size once, and nothing for a candidate"


def test_further_passes_alone_are_computed_and_shared_over_betas_and_passes() -> None:
    model = sure_model()
    shared = batches_of(model, drawn_text(model))
    assert isinstance(shared, SharedText)
    runs = [0] * 6
    for number, layer in enumerate(decoder_layers(model)):
        layer.mlp.register_forward_hook(lambda *_, number=number: runs.__setitem__(number, runs[number] + 1))
    damped = loops_from(*(f"2:4 x3 damped beta={beta}" for beta in (0.25, 0.5, 0.75)))
    shared.kept(damped, shared.score[0])
    assert runs == [0, 0, 2, 2, 1, 1], "two further passes once for three betas, and the layers after them once"
    runs[:] = [0] * 6
    shared.kept(loops_from("1:4 x2", "1:4 x4", "1:4 x3"), shared.score[0])
    assert runs == [0, 3, 3, 3, 1, 1], "the fourth pass comes after the second and the third"
    runs[:] = [0] * 6
    shared.kept(loops_from("2:4 x2", "3:4 x2"), shared.score[0])
    assert runs == [0, 0, 1, 2, 1, 1]
    runs[:] = [0] * 6
    shared.logits(shared.kept([()], shared.score[0])[0], shared.score[0])
    assert runs == [0] * 6, "the unlooped model is kept"
    [together] = shared.groups(damped)
    assert set(together) == set(damped)


def test_a_forward_that_does_something_between_layers_takes_the_generic_way() -> None:
    model = sure_model()
    model.model.layers[3].register_forward_pre_hook(lambda module, args: (args[0] * 1.01, *args[1:]))
    computer = batches_of(model, drawn_text(model))
    assert isinstance(computer, GenericText)
    scorer = scorer_of(computer)
    for loops, scored in score_all(scorer, loops_from("2:4 x2", "1:3 x2 damped beta=0.5")).items():
        own = generic_score(model, loops_from(loops)[0], computer.fit, computer.score, start=scorer.start_temperature)
        assert scored.losses is not None and np.array_equal(scored.losses, own.losses)
    assert loops_of(model) == ()


@pytest.mark.parametrize("max_group", [1, 4])
def test_a_last_window_too_short_to_score_is_left_out(max_group: int) -> None:
    model = sure_model()
    mixture = drawn_text(model, last=2)  # no longer than the stride
    computer = batches_of(model, mixture, max_group=max_group)
    assert sum(len(batch.input_ids) for batch in computer.score) == len(mixture.score) - 1
    scorer = scorer_of(computer, with_kl=True)
    [scored] = scorer.score(loops_from("2:4 x2 damped beta=0.5"))
    own = generic_score(model, loops_from("2:4 x2 damped beta=0.5")[0], computer.fit, computer.score, start=scorer.start_temperature)
    assert scored.losses is not None and np.allclose(scored.losses, own.losses, atol=LOOSE)


def test_values_are_the_text_scores_and_paired_by_position() -> None:
    model = sure_model()
    computer = batches_of(model, drawn_text(model), max_group=1)
    scorer = scorer_of(computer)
    plain = scorer.unlooped_result()
    assert plain.result.loops == "" and plain.result.layer_pass_ratio == 1.0 and plain.result.values["difference_nats"] == 0
    for scored in score_all(scorer, loops_from(*SINGLE[:3])).values():
        candidate = loops_from(scored.result.loops)[0]
        own = generic_score(model, candidate, computer.fit, computer.score, start=scorer.start_temperature)
        values = scored.result.values
        assert scored.result.layer_pass_ratio == cost_of(shape_of(), candidate).layer_pass_ratio
        assert objective_named("ppl_t").score(scored.result, 6) == own.loss_nats
        assert objective_named("ppl").score(scored.result, 6) == math.log(own.perplexity)
        assert (values["num_fit_positions"], values["num_score_positions"]) == (own.num_fit_tokens, own.num_score_tokens)
        assert scored.losses is not None and plain.losses is not None
        differences = scored.losses.astype(float) - plain.losses
        assert values["difference_nats"] == pytest.approx(own.loss_nats - scorer.unlooped().loss_nats, abs=1e-6)
        assert values["standard_error_nats"] == pytest.approx(np.std(differences, ddof=1) / math.sqrt(len(differences)))
        assert scored.result.seconds is not None and scored.result.seconds > 0


def test_divergence_is_that_of_the_two_distributions() -> None:
    model = sure_model()
    computer = batches_of(model, drawn_text(model), max_group=3)
    scorer = scorer_of(computer, with_kl=True)
    for scored in score_all(scorer, loops_from(*SINGLE[:3], "5:6 x2")).values():
        direct = []
        for looped, plain in zip(
            generic_logits(model, loops_from(scored.result.loops)[0], computer.score),
            generic_logits(model, (), computer.score),
            strict=True,
        ):
            p, q = plain.logits.double().softmax(-1), looped.logits.double().softmax(-1)
            direct += (p * (p / q).log()).sum(-1).tolist()
        assert scored.result.measure == "text+kl"
        assert objective_named("kl").score(scored.result, 6) == pytest.approx(np.mean(direct), rel=1e-4)
        assert np.mean(direct) > 1e-4


def test_a_part_of_the_text_is_its_first_batches() -> None:
    model = sure_model()
    computer = text_computer(model, drawn_text(model), stride=2, batch_windows=1, max_group=1)
    scorer = scorer_of(computer)
    [scored] = scorer.score(loops_from("2:4 x2"), share=0.5)
    own = generic_score(model, loops_from("2:4 x2")[0], computer.fit[:2], computer.score[:2], start=scorer.start_temperature)
    plain = generic_score(model, (), computer.fit[:2], computer.score[:2], start=scorer.start_temperature)
    assert scored.result.share == 0.5 and scored.result.values["loss_nats"] == own.loss_nats and scored.losses is None
    assert scored.result.values["difference_nats"] == pytest.approx(own.loss_nats - plain.loss_nats, abs=1e-6)


def test_a_part_on_which_the_plain_model_has_no_temperature_ends_nothing() -> None:
    model = sure_model()
    text = drawn_text(model)
    certain = model.generate(torch.tensor([[5]]), do_sample=False, max_new_tokens=24, min_new_tokens=24)[0].tolist()
    known_by_heart = [type(text.fit[0])(document="greedy", domain="drawn", token_ids=tuple(certain))]
    mixture = TextMixture(fit=(*known_by_heart, *text.fit), score=text.score)
    computer = text_computer(model, mixture, stride=1, batch_windows=1, max_group=1)
    scorer = scorer_of(computer)
    with pytest.raises(ScoringError, match="no temperature"):
        generic_score(model, (), computer.fit[:1], computer.score[:1])
    [scored] = scorer.score(loops_from("2:4 x2 damped beta=0.75"), share=0.2)
    assert scored.result.status in ("scored", "ruined")
    assert scorer.unlooped(0.2).temperature == scorer.unlooped().temperature


@pytest.mark.parametrize("max_group", [1, 4])
@pytest.mark.parametrize("factor", [math.inf, math.nan])
def test_a_ruined_candidate_is_a_result_and_harms_no_other(max_group: int, factor: float) -> None:
    model = sure_model()
    mixture, wanted = drawn_text(model), loops_from("3:5 x2", "4:5 x2", "2:5 x2 damped beta=0.5", "3:5 x2 damped beta=0.5")
    sound = score_all(scorer_of(batches_of(model, mixture, max_group=max_group)), wanted)
    scorer = scorer_of(batches_of(model, mixture, max_group=max_group))
    scorer.unlooped()
    # Layer 2 runs a second time for one candidate alone, and only after the plain model was recorded.
    decoder_layers(model)[2].mlp.register_forward_hook(lambda module, args, output: output * factor)
    assert max_group == 1 or len(scorer.computer.groups(wanted)) == 1
    found = score_all(scorer, wanted)
    ruined = found.pop("2:5 x2 damped beta=0.5")
    assert (
        ruined.result.status == "ruined"
        and "not finite" in (ruined.result.reason or "")
        and not ruined.result.values
        and ruined.losses is None
    )
    assert objective_named("ppl_t").score(ruined.result, 6) == math.inf
    for loops, scored in found.items():
        assert scored.losses is not None and sound[loops].losses is not None
        assert np.allclose(scored.losses, sound[loops].losses, atol=LOOSE)
        assert max_group > 1 or np.array_equal(scored.losses, sound[loops].losses)


def test_a_temperature_that_cannot_be_fitted_ruins_one_candidate() -> None:
    model = sure_model()
    scorer = scorer_of(batches_of(model, drawn_text(model), max_group=1))
    scorer.unlooped()
    # A loop of layer 2 makes the head name another token than the one that follows, more surely the lower the temperature.
    head = model.lm_head.weight
    decoder_layers(model)[2].register_forward_hook(lambda module, args, output: output * 0 - 1e4 * head.mean(0))
    [ruined] = scorer.score(loops_from("2:3 x2"))
    assert ruined.result.status == "ruined" and "no temperature" in (ruined.result.reason or "")


def test_a_model_with_loops_is_refused_and_keeps_them() -> None:
    model = sure_model()
    mixture = drawn_text(model)
    insert(model, "1:2 x2")
    with pytest.raises(PlacementError, match=r"the model has the loops 1:2 x2; remove them"):
        batches_of(model, mixture)
    assert format_loops(loops_of(model)) == "1:2 x2"
    remove(model)
    with pytest.raises(ScoringError, match="training mode"):
        batches_of(model.train(), mixture)


def test_the_model_comes_back_as_it_was() -> None:
    model = sure_model()
    mixture = drawn_text(model)
    before = {name: value.clone() for name, value in model.state_dict().items()}

    def stop(done: int, total: int) -> None:
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        batches_of(model, mixture, progress=stop)
    seen: list[tuple[int, int]] = []
    computer = batches_of(model, mixture, progress=lambda *counts: seen.append(counts))
    score_all(scorer_of(computer), loops_from(*STRUCTURES))
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert loops_of(model) == ()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    for layer in decoder_layers(model):
        assert "forward" not in layer.__dict__ and not layer._forward_hooks and not layer._forward_pre_hooks
