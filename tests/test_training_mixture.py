"""Mixtures: exact shares, batches that depend on seed and step alone, plans that read nothing."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwise.cli import main
from loopwise.cli.data_plan import parse_count
from loopwise.data import (
    NAMED_MIXTURES,
    ArloopMixture,
    BatchSource,
    DataError,
    Mixture,
    MixtureBatches,
    MixturePlan,
    Stage,
    TokenBatch,
    TokenShards,
    named_mixture,
    planned_sizes,
    single_mixture,
)
from loopwise.data.assignment import draws, quotas
from training_text import FACTS, made_shards

COUNTS = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 60), min_size=1).filter(lambda counts: sum(counts.values()) > 0)


@given(counts=COUNTS, data=st.data())
@settings(max_examples=80, deadline=None)
def test_any_stretch_of_a_stage_is_that_stretch(counts: dict[str, int], data: st.DataObject) -> None:
    total = sum(counts.values())
    whole = draws(counts, 0, total)
    for name, count in counts.items():
        assert [one.number for one in whole if one.source == name] == list(range(count))
    cuts = sorted({0, total, *data.draw(st.lists(st.integers(0, total), max_size=6))})
    assert tuple(one for start, stop in itertools.pairwise(cuts) for one in draws(counts, start, stop)) == whole


@given(counts=COUNTS)
@settings(max_examples=80, deadline=None)
def test_every_beginning_of_a_stage_has_its_shares(counts: dict[str, int]) -> None:
    total, so_far = sum(counts.values()), Counter[str]()
    bound = 1 + sum(1 for count in counts.values() if count) / 2
    for place, one in enumerate(draws(counts, 0, total), 1):
        so_far[one.source] += 1
        assert all(abs(so_far[name] - place * count / total) < bound for name, count in counts.items())


def test_a_stage_of_a_trillion_is_looked_up_at_once() -> None:
    counts = {"a": 700_000_000_000, "b": 299_999_999_999, "c": 1}
    middle = draws(counts, 500_000_000_000, 500_000_001_000)
    assert len(set(middle)) == 1000 and sum(one.source == "c" for one in middle) <= 1
    assert sum(one.source == "a" for one in middle) in range(698, 703)
    with pytest.raises(DataError, match="ask within it"):
        draws(counts, 0, sum(counts.values()) + 1)


@given(shares=st.dictionaries(st.sampled_from("abcdef"), st.floats(1e-6, 1e6), min_size=1), total=st.integers(0, 10_000))
@settings(max_examples=80, deadline=None)
def test_quotas_add_up_and_are_within_one(shares: dict[str, float], total: int) -> None:
    found = quotas(shares, total)
    assert sum(found.values()) == total
    assert all(abs(found[name] - total * share / sum(shares.values())) < 1.001 for name, share in shares.items())


MIXTURE = Mixture(
    name="two",
    stages=(Stage(tokens=10 * 8 * 16, shares={"web": 0.75, "math": 0.25}), Stage(tokens=6 * 8 * 16, shares={"math": 1.0})),
)


@pytest.fixture
def shards(tmp_path: Path) -> TokenShards:
    lengths = {"web.a": [[40] * 20, [31] * 5], "web.b": [[100] * 2], "math": [[25] * 20]}
    return made_shards(tmp_path / "shards", lengths, replace(FACTS, vocab_size=60_000, end_token_id=59_999))


def batches(shards: TokenShards, mixture: Mixture = MIXTURE, *, seed: int = 0, document_mask: bool = False) -> MixtureBatches:
    return MixtureBatches(mixture, shards, num_sequences=8, sequence_tokens=16, seed=seed, document_mask=document_mask)


def same(one: TokenBatch, two: TokenBatch) -> bool:
    return one.row_hashes() == two.row_hashes()


@pytest.mark.parametrize("document_mask", [False, True])
def test_a_batch_depends_on_seed_and_step_alone(shards: TokenShards, document_mask: bool) -> None:
    first, second = batches(shards, document_mask=document_mask), batches(shards, document_mask=document_mask)
    found = {step: first.batch(step) for step in range(16)}
    for step in (15, 3, 9, 3, 10):
        assert same(second.batch(step), found[step])
        assert first.row_hashes(step, 2, 5) == found[step].row_hashes()[2:5]
    # Ranks and micro-batches read parts of a batch.
    parts = [batches(shards, document_mask=document_mask).row_hashes(4, start, start + 2) for start in range(0, 8, 2)]
    assert tuple(itertools.chain(*parts)) == found[4].row_hashes()
    assert not same(batches(shards, seed=1, document_mask=document_mask).batch(3), found[3])
    source: BatchSource = first
    assert (source.num_sequences, source.sequence_tokens, first.num_steps) == (8, 16, 16)


def test_stages_have_their_shares_and_go_on_in_their_sources(shards: TokenShards) -> None:
    source = batches(shards)
    first_math = int(shards.select("math").tokens(0, 1)[0])
    kinds = [["math" if row[0] >= first_math and row[0] != 59_999 else "web" for row in source.batch(step).input_ids] for step in range(16)]
    drawn = [[one.source for one in source.plan.draw(step)] for step in range(16)]
    agree = sum(kind == one for kinds_, drawn_ in zip(kinds, drawn, strict=True) for kind, one in zip(kinds_, drawn_, strict=True))
    assert agree >= 8 * 16 - 4  # a row that begins with an end token does not tell
    assert all(step.count("math") == 2 for step in drawn[:10]) and all(step.count("math") == 8 for step in drawn[10:])
    numbers = [one.number for step in range(16) for one in source.plan.draw(step) if one.source == "math"]
    assert numbers == list(range(20 + 48))


def test_a_source_is_read_through_before_it_is_read_again(shards: TokenShards) -> None:
    mixture = Mixture(name="m", stages=(Stage(tokens=None, shares={"math": 1.0}),))
    source = batches(shards, mixture)
    windows = (shards.select("math").num_tokens - 1) // 16
    rows = [row.tobytes() for step in range(2 * windows // 8 + 1) for row in source.batch(step).input_ids][: 2 * windows]
    assert len(set(rows[:windows])) == windows and set(rows[:windows]) == set(rows[windows:]) and rows[:windows] != rows[windows:]


def test_a_domain_is_all_its_sources_and_single_is_everything(shards: TokenShards) -> None:
    assert planned_sizes(MIXTURE, [shards.folder]) == {"web": 20 * 41 + 5 * 32 + 202, "math": 20 * 26}
    everything = batches(shards, single_mixture())
    assert everything.num_steps is None
    windows = (shards.num_tokens - 1) // 16
    seen = {row.tobytes() for step in range(windows // 8 + 1) for row in everything.batch(step).input_ids}
    assert len(seen) == windows


def test_several_folders_of_one_tokenizer_are_one(tmp_path: Path, shards: TokenShards) -> None:
    facts = replace(FACTS, vocab_size=60_000, end_token_id=59_999)
    other = made_shards(tmp_path / "other", {"code": [[300]]}, facts)
    mixture = Mixture(name="m", stages=(Stage(tokens=8 * 16 * 4, shares={"code": 1, "math": 1}),))
    both = MixtureBatches(mixture, [shards, other], num_sequences=8, sequence_tokens=16, seed=0)
    assert both.batch(1).input_ids.shape == (8, 16) and len(both.identity["shards_sha256"]) == 2
    with pytest.raises(DataError, match="has source 'code', which is in"):
        MixtureBatches(mixture, [other, other], num_sequences=8, sequence_tokens=16, seed=0)
    stranger = made_shards(tmp_path / "stranger", {"code": [[300]]}, replace(facts, sha256="f" * 64))
    with pytest.raises(DataError, match="different tokenizers"):
        MixtureBatches(mixture, [shards, stranger], num_sequences=8, sequence_tokens=16, seed=0)


def test_the_identity_names_everything_that_decides(tmp_path: Path, shards: TokenShards) -> None:
    known = batches(shards).identity
    assert json.loads(json.dumps(known)) == known
    mixture = replace(MIXTURE, stages=MIXTURE.stages[:1])
    options = dict(num_sequences=8, sequence_tokens=16, seed=0)
    others = [
        batches(shards, seed=1),
        batches(shards, document_mask=True),
        batches(shards, mixture),
        MixtureBatches(MIXTURE, shards, **options | {"num_sequences": 4}),
        MixtureBatches(MIXTURE, shards, **options | {"sequence_tokens": 8}),
    ]
    assert all(other.identity != known for other in others) and batches(shards).identity == known


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ({"nope": 1}, "takes 'nope', which the shards lack; they have math, web, web.a, web.b"),
        ({"web": 1, "web.a": 1}, "as 'web' and as 'web.a'"),
    ],
)
def test_mixtures_that_do_not_fit_the_shards_are_refused(shards: TokenShards, shares: dict[str, float], message: str) -> None:
    with pytest.raises(DataError, match=message):
        batches(shards, Mixture(name="m", stages=(Stage(tokens=4096, shares=shares),)))


def test_steps_and_rows_outside_are_refused(shards: TokenShards) -> None:
    source = batches(shards)
    for step in (-1, 16):
        with pytest.raises(DataError, match=f"step {step} is asked of a mixture with 16 steps"):
            source.batch(step)
    for first, stop in ((0, 9), (3, 3), (-1, 2)):
        with pytest.raises(DataError, match="of a batch with 8"):
            source.batch(0, first, stop)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"name": "m", "stages": []}, "has no stage"),
        ({"name": "m", "stages": [{"tokens": 5, "shares": {"a": -1}}]}, "give at least one above 0 and none below"),
        ({"name": "m", "stages": [{"tokens": 5, "shares": {"a": 0}}]}, "give at least one above 0"),
        ({"name": "m", "stages": [{"tokens": 0, "shares": {"a": 1}}]}, "give at least 1"),
        ({"name": "m", "stages": [{"tokens": 1.5, "shares": {"a": 1}}]}, "give a whole number"),
        ({"name": "m", "stages": [{"tokens": 5, "shares": {"a": "1"}}]}, "give finite numbers"),
        ({"name": "m", "stages": [{"tokens": 5, "shares": {"a": float("nan")}}]}, "give finite numbers"),
        ({"name": "m", "stages": [{"tokens": None, "shares": {"a": 1, "b": 1}}]}, "without end"),
        ({"name": "m", "stages": [{"tokens": None, "shares": {"a": 1}}, {"tokens": 5, "shares": {"a": 1}}]}, "without end"),
        ({"stages": []}, "lacks 'name'"),
        ([1], "lacks"),
    ],
)
def test_mixtures_that_cannot_be_are_one_line(tmp_path: Path, values: object, message: str) -> None:
    file = tmp_path / "m.json"
    file.write_text(json.dumps(values))
    with pytest.raises(DataError, match=message) as caught:
        named_mixture(str(file))
    assert "\n" not in str(caught.value) and str(file) in str(caught.value)


def test_a_mixture_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "m.json"
    file.write_text(json.dumps(MIXTURE.to_json()))
    assert named_mixture(str(file)) == MIXTURE
    for name, message in (
        ("nothing", "no mixture is called 'nothing'; use single, arloop-0.6b"),
        (str(tmp_path / "x.json"), "no such mixture"),
    ):
        with pytest.raises(DataError, match=message):
            named_mixture(name)


def test_a_scaled_mixture_keeps_its_proportions() -> None:
    scaled = named_mixture("arloop-0.6b").scaled(1_000_003)
    assert [stage.tokens for stage in scaled.stages] == [600_002, 200_000, 200_001] and scaled.num_tokens == 1_000_003
    assert [stage.shares for stage in scaled.stages] == [stage.shares for stage in named_mixture("arloop-0.6b").stages]
    assert single_mixture().scaled(500).num_tokens == 500


@pytest.mark.parametrize(("run", "total", "visible"), [("arloop-0.6b", 180, 147.24), ("arloop-1.2b", 500, 409.00)])
def test_arloops_stages_are_its_table(run: str, total: float, visible: float) -> None:
    mixture, listed = named_mixture(run), named_mixture(f"{run}-listed")
    assert mixture.num_tokens == total * 10**9 and listed.num_tokens == round(visible * 10**9)
    unlisted = sum(stage.shares["unlisted"] for stage in mixture.stages)
    assert unlisted == pytest.approx(total - visible) and "unlisted" not in listed.sources
    # The page's own row totals, and the shares that make 60, 20 and 20 % likely.
    web = sum(stage.shares["fineweb-edu"] for stage in mixture.stages)
    assert web == pytest.approx({180: 137.44, 500: 381.78}[int(total)])
    first = mixture.stages[0]
    assert first.tokens is not None and first.shares["stackexchange"] * 1e9 / first.tokens == pytest.approx(0.02)
    for short in ((0.5, 0.3, 0.2), (0.6, 0.2, 0.3)):
        with pytest.raises(DataError, match="stage"):
            ArloopMixture(run=run, stage_shares=short).mixture()
    with pytest.raises(DataError, match="no run of ARLoop's"):
        ArloopMixture(run="arloop-9b").mixture()


def test_a_plan_of_the_paper_runs_to_its_end() -> None:
    plan = MixturePlan(named_mixture("arloop-1.2b"), num_sequences=1024, sequence_tokens=4096)
    assert plan.num_steps == pytest.approx(500e9 / (1024 * 4096), abs=2)
    last = Counter(one.source for one in plan.draw(plan.num_steps - 1))
    assert last["fineweb-edu"] == pytest.approx(0.6127 * 1024, abs=4) and sum(last.values()) == 1024
    found = plan.describe({"fineweb-edu": 50 * 10**9, "unlisted": 100 * 10**9})
    assert found["sources"][0]["epochs"] == pytest.approx(381.78 / 50, rel=1e-3)
    assert len(found["warnings"]) == 1 and found["warnings"][0].startswith("fineweb-edu: is read 7.6 times")
    tokens = sum(source["tokens"] for stage in found["stages"] for source in stage["sources"])
    assert tokens == found["tokens"] == sum(source["tokens"] for source in found["sources"])


def test_a_stage_shorter_than_a_step_is_refused() -> None:
    with pytest.raises(DataError, match="stage 1 has 1280 tokens, a step takes 4096"):
        MixturePlan(MIXTURE, num_sequences=16, sequence_tokens=256)
    with pytest.raises(DataError, match="give at least 1 of each"):
        MixturePlan(MIXTURE, num_sequences=0, sequence_tokens=256)
    with pytest.raises(DataError, match="goes on without end"):
        MixturePlan(single_mixture(), num_sequences=1, sequence_tokens=1).describe({})


def test_the_command_plans_from_the_index_alone(shards: TokenShards, capsys: pytest.CaptureFixture[str]) -> None:
    for file in shards.folder.glob("*.tokens"):
        file.unlink()
    options = ["--data", str(shards.folder), "--tokens", "8K", "--batch-tokens", "256", "--sequence-tokens", "16"]
    main(["data", "plan", *options])
    out = capsys.readouterr().out
    assert "single: 31 steps of 16 x 16 tokens, 7,936 in all" in out and "warning: all: is read 4.7 times" in out
    main(["data", "plan", *options, "--json"])
    assert json.loads(capsys.readouterr().out)["sources"] == [
        {"source": "all", "tokens": 7936, "available_tokens": shards.num_tokens, "epochs": 496 / ((shards.num_tokens - 1) // 16)}
    ]
    main(["data", "plan", "--mixture", "arloop-0.6b", "--batch-tokens", "1M", "--sequence-tokens", "4096"])
    out = capsys.readouterr().out
    assert "unlisted" in out and "not known" in out and "82.43%" in out


@pytest.mark.parametrize("name", NAMED_MIXTURES)
def test_every_named_mixture_can_be_planned(name: str) -> None:
    mixture = named_mixture(name).scaled(10**9)
    plan = MixturePlan(mixture, num_sequences=64, sequence_tokens=1024)
    assert plan.describe({})["tokens"] == pytest.approx(10**9, rel=1e-3)
    assert Mixture.from_json(json.loads(json.dumps(mixture.to_json()))) == mixture
    assert len(plan.draw(0)) == 64 and np.unique([one.number for one in plan.draw(0)]).size > 1


def test_numbers_of_tokens_are_read() -> None:
    assert [parse_count(text) for text in ("1500", "1.5K", "1M", "180B", "2,000", "1_000", "0.5t")] == [
        1500, 1500, 10**6, 180 * 10**9, 2000, 1000, 5 * 10**11,
    ]  # fmt: skip
    for text in ("", "M", "1.5", "-1", "0", "1MM", "1e9"):
        with pytest.raises(ValueError, match="is no number of tokens"):
            parse_count(text)
