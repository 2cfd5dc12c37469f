"""Drawn answers under ``--engine vllm``: several of an item, votes, forced text. With an engine like vLLM's, and with vLLM where it is."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import loopwise
from like_vllm import start_like_vllm
from loopwise.decoding import Completion, DecodingRule
from loopwise.decoding.sampling import draw
from loopwise.models import load, save
from loopwise.recipes import trial as trials
from loopwise.recipes.trial_settings import TrialSettings
from loopwise.records import Record, read_run
from loopwise.serving import VllmHost, generate
from loopwise.tasks import Task
from test_evaluation import make_task
from tiny import VOCABULARY, tiny_model, tiny_tokenizer, tokens

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_CI_ENV", "1")

LOOPS = "1:4 x2 damped beta=0.25"
TOKENIZER = tiny_tokenizer()
DRAWN = DecodingRule(temperature=0.8)
HEADS = dict(hidden_size=64, head_dim=32, tie_word_embeddings=False)
"""The smallest heads that vLLM's kernels for CPUs have."""


@pytest.fixture(params=["like vLLM", "vLLM"])
def hosting(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a host of this engine is made with."""
    if request.param == "like vLLM":
        start_like_vllm(monkeypatch)
        return {}
    pytest.importorskip("vllm", reason="vLLM is not installed here; make test-vllm")
    return {"cache_bytes": 64 << 20}


@pytest.fixture
def host(hosting: dict[str, Any]) -> Iterator[VllmHost]:
    with VllmHost(**hosting) as host:
        yield host


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = tiny_model("llama", **HEADS)
    model.generation_config.eos_token_id = list(range(2, 8))  # so that rows end at different steps
    with torch.no_grad():
        model.lm_head.weight.mul_(0.3)  # so that draws differ
    folder = tmp_path_factory.mktemp("models") / "model"
    save(model, TOKENIZER, folder)
    return folder


def several(number: int = 4, **changes: Any) -> Task:
    """A task that is asked as AIME is: eight answers of every item, drawn."""
    return replace(make_task(number=number), samples=8, temperature=0.8, **changes)


def alike(records: tuple[Record, ...]) -> list[Record]:
    return [replace(record, seconds=0.0) for record in sorted(records, key=lambda record: record.key)]


def test_eight_answers_are_drawn_apart_and_the_same_in_other_batches_and_after_a_kill(folder: Path, host: VllmHost, tmp_path: Path) -> None:
    model = load(folder, loops=LOOPS).model

    def ask(batch_size: int = 3, **more: Any) -> list[Record]:
        run = loopwise.evaluate(model, TOKENIZER, several(), engine="vllm", host=host, batch_size=batch_size, **more)
        assert run.header["samples"] == 8 and run.header["decoding"]["temperature"] == 0.8
        return alike(run.records)

    drawn = ask(out=tmp_path / "run")
    own = loopwise.evaluate(model, TOKENIZER, several())
    assert [record.key for record in drawn] == [record.key for record in own.records]
    assert Counter(record.item for record in drawn) == dict.fromkeys(("i0", "i1", "i2", "i3"), 8)
    for item in ("i0", "i1", "i2", "i3"):
        assert len({record.text for record in drawn if record.item == item}) >= 6
    of_flops = {(record.prompt_tokens, record.generated_tokens, record.flops) for record in own.records}
    flops = {(prompt, generated): value for prompt, generated, value in of_flops}
    for record in drawn:
        assert record.text is not None and record.generated_tokens is not None
        assert record.finished == (record.stop_reason == "end") == (record.generated_tokens < 20 or record.stop_reason == "end")
        assert record.generated_tokens - 6 < len(record.text.split()) <= record.generated_tokens  # w0 and w2 are no text
        assert record.flops == flops.get((record.prompt_tokens, record.generated_tokens), record.flops)
    assert {record.stop_reason for record in drawn} == {"end", "budget"}
    assert ask(batch_size=7) == drawn
    file = tmp_path / "run" / "records.jsonl"
    file.write_text("".join(line + "\n" for line in file.read_text().splitlines()[:5]))
    assert ask(out=tmp_path / "run") == drawn
    other = ask(seed=1)
    assert [record.sample for record in other] == [record.sample for record in drawn]
    assert sum(a.text == b.text for a, b in zip(other, drawn, strict=True)) < 8


def test_forced_text_stands_where_it_does_greedily_and_what_was_drawn_before_it_is_that_of_the_plain_rule(
    folder: Path, host: VllmHost
) -> None:
    model = load(folder, loops=LOOPS).model
    rules = {"plain": DRAWN, "forcing": replace(DRAWN, budget_forcing=True, reserve_tokens=16)}
    keys = [(0, item, sample) for item in range(2) for sample in range(8)]
    prompts = [tokens(1, 9, seed=item)[0].tolist() for _, item, _ in keys]
    engine = host.on(model, max_tokens=48, max_rows=9)

    def ask(rule: str, batch_size: int = 4) -> list[Completion]:
        asked: dict[str, Any] = dict(keys=keys, answer_opener=" w99", budget_tokens=30, rule=rules[rule], batch_size=batch_size)
        return [replace(one, seconds=0.0) for one in generate(engine, TOKENIZER, prompts, **asked)]

    plain, forced = ask("plain"), ask("forcing")
    assert ask("forcing", batch_size=9) == forced
    assert {one.stop_reason for one in forced} >= {"end", "budget"}
    after = set()
    for one, other in zip(plain, forced, strict=True):
        assert other.finished == (other.stop_reason in ("end", "forced")) and other.generated_tokens <= 30
        if not other.forced_tokens:  # it ended before, or had opened its answer by itself
            assert one == other and (other.generated_tokens <= 14 or 99 in other.token_ids[:14])
        else:
            assert other.token_ids[:15] == (*one.token_ids[:14], 99)
            assert other.forced_mask == tuple(n == 14 for n in range(other.generated_tokens))
            after.add(other.token_ids[15:])
    assert len(after) > 2, "each sample goes on with draws of its own"


def test_a_trial_with_votes_and_noise_floors_has_the_own_engines_arms_and_its_greedy_answers(
    folder: Path, hosting: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "VllmHost", lambda: VllmHost(**hosting))
    numbers = {"greedy": 3, "drawn": 2}
    tasks = {"greedy": make_task(number=3), "drawn": several(2, name="toy8")}
    monkeypatch.setattr(trials, "tasks_named", lambda names: [tasks[name] for name in names])
    rule = "budget-forcing+repetition-stop"
    noise = dict(noise_floor=True, noise_floor_of=(f"twin-{rule}-20-sampled4",))
    settings = TrialSettings(rules=(rule,), vote_samples=4, reserves=(4,), **noise)  # type: ignore[arg-type]
    for name in tasks:
        runs: dict[str, dict[str, Any]] = {}
        verdicts = {}
        for engine in ("eager", "vllm"):
            out = tmp_path / name / engine
            way = replace(settings, engine=engine)  # type: ignore[arg-type]
            verdicts[engine] = trials.trial(folder, loops=LOOPS, tasks=(name,), budgets=(10, 20), out=out, settings=way)
            runs[engine] = {str(file.parent.relative_to(out)): read_run(file.parent) for file in out.rglob("records.jsonl")}
            floors = [json.loads(file.read_text()) for file in (out / "noise-floor").glob("*.json")]
            assert len(floors) == 2 and all(floor["changed_texts"] == 0 for floor in floors), floors
        assert sorted(runs["eager"]) == sorted(runs["vllm"])
        for arm, own in runs["eager"].items():
            ours = runs["vllm"][arm]
            assert sorted(record.key for record in own.records) == sorted(record.key for record in ours.records)
            if own.header["decoding"]["temperature"] == 0:
                assert alike(own.records) == alike(ours.records)
            elif "sampled4" in arm:
                assert Counter(record.item for record in ours.records) == dict.fromkeys([f"i{n}" for n in range(numbers[name])], 4)
        names = {engine: [arm.name for arm in verdict.arms] for engine, verdict in verdicts.items()}
        assert names["eager"] == names["vllm"] and sum("vote of" in one for one in names["vllm"]) >= 4
        voted = {arm.name: arm for arm in verdicts["vllm"].arms}
        assert all(arm.votes for one, arm in voted.items() if "vote of" in one)
        if name == "greedy":
            assert verdicts["eager"].equal_parameters.delta_points == verdicts["vllm"].equal_parameters.delta_points


def test_tokens_are_drawn_with_the_own_engines_probabilities(folder: Path) -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed here; make test-vllm")
    model, prompt, number = load(folder, loops=LOOPS).model, tokens(1, 9, seed=4), 3000
    with torch.no_grad():
        logits = model(prompt).logits[0, -1]
    even = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    with VllmHost(cache_bytes=64 << 20) as host:
        engine = host.on(model, max_tokens=16, max_rows=64)
        for rule in (DRAWN, DecodingRule(temperature=1.7, top_k=9), DecodingRule(temperature=0.6, top_p=0.7, top_k=30)):
            wanted = torch.bincount(draw(logits.expand(len(even), -1), even, rule), minlength=VOCABULARY) / len(even)
            done = generate(engine, TOKENIZER, [prompt[0].tolist()] * number, budget_tokens=1, rule=rule, batch_size=64)
            found = torch.bincount(torch.tensor([one.token_ids[0] for one in done]), minlength=VOCABULARY) / number
            assert found[wanted == 0].sum() == 0 or rule is DRAWN, "no token from outside of top-k and top-p"
            likely = wanted * number >= 5
            chi2 = float((number * (found - wanted)[likely] ** 2 / wanted[likely]).sum())
            degrees = int(likely.sum()) - 1
            print(rule, "chi2", chi2, "degrees", degrees)
            assert degrees > 2 and chi2 < degrees + 5 * (2 * degrees) ** 0.5, (rule, chi2, degrees)


def test_drawn_answers_to_more_prompt_tokens_than_vllm_reads_in_a_step(folder: Path, host: VllmHost) -> None:
    """4,096 on a CPU."""
    model = load(folder, loops=LOOPS).model
    engine = host.on(model, max_tokens=480, max_rows=12)
    prompts = [tokens(1, 440 + n, seed=n)[0].tolist() for n in range(12)]
    wanted: dict[str, Any] = dict(budget_tokens=4, rule=DRAWN)
    together = generate(engine, TOKENIZER, prompts, batch_size=12, **wanted)
    apart = generate(engine, TOKENIZER, prompts, batch_size=1, **wanted)
    assert [one.token_ids for one in together] == [one.token_ids for one in apart]
