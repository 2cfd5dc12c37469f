"""Slot refill: a prompt that takes a finished row's place is answered as if it had a batch of its own."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch

import loopwise
from loopwise.decoding import Completion, DecodingRule, generate
from loopwise.decoding.batch import Batch
from loopwise.decoding.cache import can_refill
from loopwise.decoding.repetition import RepetitionWatch, repeats
from loopwise.loops import parse_loops
from loopwise.models import insert
from loopwise.tasks import Grade, Item, Task
from parrot import Parrot, char_tokenizer, recite
from tiny import FAMILIES, tiny_model, tokens

LENGTHS = (9, 4, 13, 1, 6, 30, 2, 17, 8, 11, 3, 25)
BUDGET = 24
ENDS = list(range(2, 20))
DRAWN = DecodingRule(temperature=1.0)
"""Draws move with the logits, where a greedy token of a random model may survive a wrong cache."""
LOOPS = {
    "repeat": "1:4 x2",
    "damped and MLP": "1:4 x2 damped beta=0.5 + 2.mlp x2",
    "damped MLP": "4.mlp x3 damped beta=0.25",
    "nested": "1:5 x2 + 2:4 x2 in pass 1",
}


def prompts() -> list[list[int]]:
    return [tokens(1, length, seed=length)[0].tolist() for length in LENGTHS]


def ending_model(family: str, loops: str = "none", seed: int = 0) -> Any:
    model = tiny_model(family, seed=seed, tie_word_embeddings=False)
    model.generation_config.eos_token_id = ENDS
    return insert(model, parse_loops(loops, 6)) if loops != "none" else model


def decode(model: Any, some: list[list[int]] | None = None, **options: Any) -> list[Completion]:
    return generate(model, char_tokenizer(None, tags=False), some or prompts(), budget_tokens=BUDGET, **options)


def ids(completions: list[Completion]) -> list[tuple[int, ...]]:
    return [completion.token_ids for completion in completions]


def watch_refills(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[int], int, int]]:
    """Of every refill the rows, and the batch's columns before and after."""
    seen: list[tuple[list[int], int, int]] = []
    refill = Batch.refill

    def watched(self: Batch, rows: Any, some: Any) -> Any:
        before = self.width
        logits = refill(self, rows, some)
        seen.append((list(rows), before, self.width))
        return logits

    monkeypatch.setattr(Batch, "refill", watched)
    return seen


@pytest.mark.parametrize("family", FAMILIES)
def test_refilled_rows_are_the_rows_alone(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = ending_model(family, seed=1)
    refills = watch_refills(monkeypatch)
    refilled = ids(decode(model, batch_size=3, rule=DRAWN))
    assert len(refills) >= 3, "some rows end apart, so that others take their place"
    alone = [ids(decode(model, [prompt], rule=DRAWN, keys=[(0, place)]))[0] for place, prompt in enumerate(prompts())]
    assert refilled == alone
    assert refilled == ids(decode(model, batch_size=3, rule=DRAWN, refill=False))
    assert refilled == ids(decode(model, batch_size=3, rule=DRAWN, fixed_rows=True))


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2", "qwen3_5"])
@pytest.mark.parametrize("loops", LOOPS.values(), ids=LOOPS)
def test_looped_rows_too(family: str, loops: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = ending_model(family, loops, seed=2)
    refills = watch_refills(monkeypatch)
    for rule in (DRAWN, DecodingRule()):
        assert ids(decode(model, batch_size=4, rule=rule)) == ids(decode(model, batch_size=4, rule=rule, refill=False))
    assert refills


def test_fixed_rows_are_never_refilled(monkeypatch: pytest.MonkeyPatch) -> None:
    refills = watch_refills(monkeypatch)
    model = ending_model("llama", seed=1)
    decode(model, batch_size=3, rule=DRAWN, fixed_rows=True)
    decode(model, batch_size=3, rule=DRAWN, refill=False)
    assert refills == []


def test_a_cache_that_cannot_be_refilled_runs_its_batches_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ending_model("llama", seed=1)
    expected = ids(decode(model, batch_size=3, rule=DRAWN))
    refills = watch_refills(monkeypatch)
    monkeypatch.setattr("loopwise.decoding.batch.can_refill", lambda cache: False)
    assert ids(decode(model, batch_size=3, rule=DRAWN)) == expected
    assert refills == []


def test_which_caches_can_be_refilled() -> None:
    cache = Batch(tiny_model("qwen3_5"), [[5, 6]], 4, 0).cache
    assert can_refill(cache)
    cache.layers.append(object())
    assert not can_refill(cache)


@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen3_5"])
def test_logits_after_refills_are_those_of_full_recompute(family: str) -> None:
    """A longer prompt than the batch has columns, a shorter one, and padding that is dropped."""
    model = tiny_model(family)
    some = [tokens(1, length, seed=length)[0].tolist() for length in (12, 5, 9)]
    batch = Batch(model, some, 200, 0)
    with torch.inference_mode():
        logits = batch.prefill()
        widths = []
        for turn in range(40):
            step = tokens(3, 1, seed=100 + turn)[:, 0].tolist()
            logits = batch.step(step)
            for row in range(3):
                some[row] = [*some[row], step[row]]
            if turn in (3, 8, 15, 30):
                rows = {3: [1], 8: [0, 2], 15: [2, 1], 30: [0]}[turn]
                new = [tokens(1, length, seed=length + turn)[0].tolist() for length in {3: [40], 8: [1, 3], 15: [7, 20], 30: [2]}[turn]]
                first = batch.refill(rows, new)
                logits = logits.index_copy(0, torch.tensor(rows), first)
                for row, prompt in zip(rows, new, strict=True):
                    some[row] = prompt
            widths.append(batch.width)
            for row in range(3):
                alone = model(input_ids=torch.tensor([some[row]]), use_cache=False).logits[0, -1]
                torch.testing.assert_close(logits[row], alone, rtol=1e-4, atol=1e-4)
    assert max(widths) > 40 and any(after < before for before, after in pairwise(widths))


def test_texts_rules_and_forced_tokens_survive_refill() -> None:
    tokenizer = char_tokenizer()
    minds = {f"q{n}": recite("ab" * (3 + 5 * (n % 4)), ends=n % 3 > 0) for n in range(10)}
    rule = DecodingRule(budget_forcing=True, reserve_tokens=8, repetition_stop=True)
    kept = []
    for refill in (True, False):
        model = Parrot(tokenizer, minds)
        options: dict[str, Any] = {"budget_tokens": 40, "rule": rule, "answer_opener": " A:", "batch_size": 3, "refill": refill}
        kept.append([(c.text, c.forced_mask, c.stop_reason) for c in generate(model, tokenizer, list(minds), **options)])
    assert kept[0] == kept[1]
    assert {reason for _, _, reason in kept[0]} >= {"end", "repetition"} and any(any(mask) for _, mask, _ in kept[0])


def test_a_row_does_not_repeat_what_the_row_before_it_wrote() -> None:
    """ "abcdabcdabc" ends at the budget, and the row in its place begins with "d"."""
    tokenizer = char_tokenizer()
    minds = {"q0": recite("cc"), "q1": recite("qwertyuiopasz"), "q2": recite("abcd", ends=False), "q3": recite("zxvnmlkjhgfds")}
    model = Parrot(tokenizer, {**minds, "q4": recite("defgh")})
    done = generate(model, tokenizer, list(model.minds), budget_tokens=11, rule=DecodingRule(repetition_stop=True), batch_size=2)
    assert [(c.text, c.stop_reason) for c in done][2:] == [("abcdabcdabc", "budget"), ("zxvnmlkjhgf", "budget"), ("defgh", "end")]


def test_fewer_steps_than_without() -> None:
    tokenizer = char_tokenizer()
    minds = {f"q{n:02}": recite("x" * (40 if n % 4 == 0 else 4)) for n in range(16)}
    steps = {}
    for refill in (True, False):
        model = Parrot(tokenizer, minds)
        generate(model, tokenizer, list(minds), budget_tokens=60, batch_size=4, refill=refill)
        steps[refill] = sum(shape[1] == 1 for shape in model.shapes)
    assert steps[True] < 0.5 * steps[False]


def test_progress_and_seconds_with_refill() -> None:
    shares: list[float] = []
    ended: list[int] = []
    done = decode(
        ending_model("llama", seed=1),
        batch_size=3,
        rule=DRAWN,
        progress=lambda state: shares.append(state.share),
        on_complete=lambda index, _: ended.append(index),
    )
    assert sorted(ended) == list(range(len(LENGTHS)))
    assert shares == sorted(shares) and shares[-1] == 1.0
    assert all(completion.seconds > 0 for completion in done)


def test_repetition_is_watched_beyond_the_steps_there_is_room_for() -> None:
    watch = RepetitionWatch(2, 10)
    text = [7, 8, 9, *[1, 2, 3, 4, 5] * 5]
    seen = []
    for place, token in enumerate([*range(1000, 1400), *text]):
        if place == 400:
            watch.restart(1)
        seen.append(watch.update([token, token])[1])
    assert seen[400:] == [repeats(text[: end + 1]) for end in range(len(text))] and any(seen)


# --- evaluations


def toy() -> Task:
    items = tuple(Item(name=f"i{n}", prompt=f"Question {n * n * n}?", gold="a") for n in range(40))
    return Task(
        name="toy", version="1", kind="generate", budget_tokens=12, reserve_tokens=2, answer_opener=" A:",
        loader=lambda data, limit, split: items[:limit],
        grader=lambda item, text: Grade(correct="a" in text, answer=text[:1] or None, rule="text"),
    )  # fmt: skip


def evaluated(out: Any = None, **options: Any) -> Any:
    model = ending_model("llama", "1:3 x2", seed=3)
    return loopwise.evaluate(model, char_tokenizer(), toy(), out=out, batch_size=2, rule=DRAWN, **options)


def answers(run: Any) -> dict[Any, Any]:
    return {record.key: (record.text, record.generated_tokens) for record in run.records}


def test_evaluations_are_refilled_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    refills = watch_refills(monkeypatch)
    run = evaluated()
    assert refills and run.header["batch_plan"] == "refill" and run.header["engine"] == "eager"
    number = len(refills)
    fixed = evaluated(fixed_rows=True)
    assert fixed.header["batch_plan"] == "fixed-rows" and len(refills) == number
    assert answers(fixed) == answers(run)


def test_a_killed_evaluation_decodes_its_unfinished_group_again(tmp_path: Any) -> None:
    """Groups are as a whole run has them, so that what shares a batch with what does not depend on the kill."""
    whole = evaluated(tmp_path / "whole")
    lines = (tmp_path / "whole" / "records.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "header.json").write_text((tmp_path / "whole" / "header.json").read_text())
    (tmp_path / "cut" / "records.jsonl").write_text("".join(lines[:21]))
    again = evaluated(tmp_path / "cut")
    assert answers(again) == answers(whole)
    after = (tmp_path / "cut" / "records.jsonl").read_text().splitlines(keepends=True)

    def unclocked(line: str) -> str:
        return line.partition('"seconds"')[0]

    assert [unclocked(line) for line in after] == [unclocked(line) for line in lines]
