"""Calibrated perplexity against a naive reference in fp64, and what it must not do."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from data import data_dir
from loopwise.scoring import PositionLogits, ScoringError, fit_temperature, losses_at, score_text, scored_positions, token_losses
from loopwise.scoring import temperature as temperature_module
from tiny import tiny_model

VOCABULARY = 97


@pytest.fixture(scope="module")
def tiny() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2
    )
    return LlamaForCausalLM(config).eval()


def _windows(lengths: list[int], seed: int) -> list[list[int]]:
    generator = np.random.default_rng(seed)
    return [generator.integers(0, VOCABULARY, length).tolist() for length in lengths]


def _learnable(num: int, seed: int, scale: float = 1.0) -> PositionLogits:
    """Random logits whose targets are drawn from their own softmax: the best temperature is near 1, and ``scale`` moves it."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2.0 * torch.randn(num, VOCABULARY, generator=generator)
    targets = torch.multinomial(torch.softmax(logits, -1), 1, generator=generator)[:, 0]
    return PositionLogits(logits=scale * logits, targets=targets)


def _reference_loss(part: PositionLogits, temperature: float) -> float:
    logits = part.logits.double() / temperature
    return torch.nn.functional.cross_entropy(logits, part.targets).item()


def _reference_temperature(part: PositionLogits) -> float:
    found = minimize_scalar(lambda x: _reference_loss(part, math.exp(x)), bounds=(-4, 4), method="bounded", options={"xatol": 1e-9})
    return math.exp(found.x)


@pytest.mark.parametrize("scale", [0.04, 0.3, 1.0, 2.5, 20.0])
@pytest.mark.parametrize("num", [3, 64, 200])
def test_the_fitted_temperature_is_the_references(num: int, scale: float) -> None:
    part = _learnable(num, seed=num, scale=scale)
    assert math.log(fit_temperature([part])) == pytest.approx(math.log(_reference_temperature(part)), abs=1e-4)


def test_a_known_scale_of_the_logits_is_recovered() -> None:
    base = fit_temperature([_learnable(300, seed=1)])
    for scale in (0.1, 0.5, 3.0, 12.0):
        scaled = fit_temperature([_learnable(300, seed=1, scale=scale)])
        assert math.log(scaled / base) == pytest.approx(math.log(scale), abs=2e-4)


def test_parts_weigh_by_their_positions() -> None:
    whole = _learnable(150, seed=2)
    parts = [PositionLogits(logits=whole.logits[a:b], targets=whole.targets[a:b]) for a, b in ((0, 7), (7, 7), (7, 150))]
    assert fit_temperature(parts) == pytest.approx(fit_temperature([whole]), rel=1e-4)


def test_few_evaluations_suffice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each one costs an exp over all stored logits: Newton's method must not have turned into bisection."""
    calls = []
    real = temperature_module._slope_and_curvature
    monkeypatch.setattr(temperature_module, "_slope_and_curvature", lambda *a: calls.append(1) or real(*a))
    for scale in (0.5, 1.0, 2.0):
        calls.clear()
        fit_temperature([_learnable(200, seed=3, scale=scale)])
        assert len(calls) <= 9, f"{len(calls)} evaluations at scale {scale}"


def test_nothing_given_is_changed() -> None:
    part = _learnable(70, seed=4)
    before = part.logits.clone()
    fit_temperature([part])
    losses_at(part, 0.5)
    assert torch.equal(part.logits, before)


def test_no_minimum_is_an_error_that_says_why() -> None:
    part = _learnable(50, seed=5)
    best = PositionLogits(logits=part.logits, targets=part.logits.argmax(-1))
    with pytest.raises(ScoringError, match=r"50 positions.*still falls at T = 0\.0156.*by heart"):
        fit_temperature([best])
    worst = PositionLogits(logits=part.logits, targets=part.logits.argmin(-1))
    with pytest.raises(ScoringError, match=r"still falls at T = 64.*knows nothing"):
        fit_temperature([worst])
    with pytest.raises(ScoringError, match="does not depend"):
        fit_temperature([PositionLogits(logits=torch.ones(5, VOCABULARY), targets=part.targets[:5])])
    with pytest.raises(ScoringError, match="no position"):
        fit_temperature([])
    broken = part.logits.clone()
    broken[3, 4] = math.nan
    with pytest.raises(ScoringError, match="not finite"):
        fit_temperature([PositionLogits(logits=broken, targets=part.targets)])


def test_token_losses_equal_one_forward_for_each_window(tiny: LlamaForCausalLM) -> None:
    windows = _windows([40, 9, 33, 40, 5, 3], seed=6)
    temperatures = (1.0, 0.7)
    expected: list[list[float]] = [[], []]
    for window in windows:
        with torch.no_grad():
            logits = tiny(input_ids=torch.tensor([window])).logits[0].double()
        for position in range(4, len(window), 4):
            for row, temperature in zip(expected, temperatures, strict=True):
                row.append(-torch.log_softmax(logits[position - 1] / temperature, -1)[window[position]].item())
    for batch_size in (1, 4):
        ours = token_losses(tiny, windows, temperatures=temperatures, stride=4, batch_size=batch_size)
        assert ours.dtype == np.float32
        np.testing.assert_allclose(ours, np.array(expected), rtol=0, atol=2e-5)


def test_every_position_can_be_scored(tiny: LlamaForCausalLM) -> None:
    window = _windows([30], seed=7)[0]
    assert list(scored_positions(30, 1)) == list(range(1, 30))
    ids = torch.tensor([window])
    with torch.no_grad():
        loss = tiny(input_ids=ids, labels=ids).loss.item()
    assert token_losses(tiny, [window], stride=1).mean() == pytest.approx(loss, abs=1e-5)


def test_logits_are_fp32_for_a_few_positions_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(temperature_module, "CHUNK_POSITIONS", 16)
    part = PositionLogits(logits=torch.zeros(100, VOCABULARY, dtype=torch.bfloat16), targets=torch.zeros(100, dtype=torch.long))
    chunks = list(part.chunks())
    assert [len(logits) for logits, _ in chunks] == [16] * 6 + [4]
    assert all(logits.dtype == torch.float32 for logits, _ in chunks)


def test_a_model_scaled_by_a_known_factor_has_that_temperature_and_the_same_calibrated_perplexity() -> None:
    model = AutoModelForCausalLM.from_pretrained(data_dir() / "models" / "stories260K" / "hf", dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(data_dir() / "models" / "stories260K" / "hf")
    text = (data_dir() / "text" / "tinyshakespeare.txt").read_text()
    ids = tokenizer(text[:40_000]).input_ids
    windows = [ids[start : start + 128] for start in range(0, 24 * 128, 128)]
    base = score_text(model, windows[:12], windows[12:])
    assert base.num_fit_tokens == base.num_score_tokens == len(base.losses) == 12 * 31
    assert base.perplexity > base.calibrated_perplexity > 1, "a model of stories is over-confident on Shakespeare"

    logits, targets = [], []
    for window in windows[:12]:
        with torch.no_grad():
            out = model(input_ids=torch.tensor([window])).logits[0]
        logits.append(out[3:127:4])
        targets.append(torch.tensor(window[4::4]))
    reference = _reference_temperature(PositionLogits(logits=torch.cat(logits), targets=torch.cat(targets)))
    assert math.log(base.temperature) == pytest.approx(math.log(reference), abs=1e-4)
    assert base.loss_nats == pytest.approx(float(token_losses(model, windows[12:], temperatures=(base.temperature,)).mean()), abs=1e-6)

    # Flattening every distribution lowers plain perplexity; the calibrated one does not see it (Appendix E).
    model.model.norm.weight.data *= 0.5
    flat = score_text(model, windows[:12], windows[12:])
    assert flat.temperature == pytest.approx(0.5 * base.temperature, rel=2e-4)
    assert flat.calibrated_perplexity == pytest.approx(base.calibrated_perplexity, rel=1e-5)
    assert flat.perplexity < base.perplexity


def test_a_score_is_of_its_own_split_and_progress_counts_batches_of_both() -> None:
    model = tiny_model("llama")
    model.model.norm.weight.data *= 20.0  # sure enough of itself that text drawn from it fits its temperature
    torch.manual_seed(0)
    drawn = model.generate(torch.tensor([[1]] * 7), do_sample=True, max_new_tokens=30, min_new_tokens=30).tolist()
    seen: list[tuple[int, int]] = []
    score = score_text(model, drawn[:3], drawn[3:], stride=2, batch_size=2, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert score.temperature == pytest.approx(1.0, abs=0.4)
    assert (score.num_fit_tokens, score.num_score_tokens) == (3 * 15, 4 * 15)
    plain, calibrated = token_losses(model, drawn[3:], temperatures=(1.0, score.temperature), stride=2)
    assert score.perplexity == pytest.approx(math.exp(plain.mean()), rel=1e-5) != score.calibrated_perplexity
    assert score.calibrated_perplexity == pytest.approx(math.exp(calibrated.mean()), rel=1e-5)
    np.testing.assert_allclose(score.losses, calibrated, atol=1e-5)


def test_bad_input_is_one_line(tiny: LlamaForCausalLM) -> None:
    with pytest.raises(ScoringError, match="none of 2 windows is longer than the stride of 4"):
        score_text(tiny, _windows([3, 4], 0), _windows([30], 0))
    with pytest.raises(ScoringError, match="at least 1"):
        token_losses(tiny, _windows([30], 0), stride=0)
    tiny.train()
    with pytest.raises(ScoringError, match=r"training mode.*model\.eval\(\)"):
        token_losses(tiny, _windows([30], 0))
    tiny.eval()
