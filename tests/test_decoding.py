"""Decoding rules on scripted models: what ends a row, what is forced and when, who leaves the batch, what is refused."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from loopwise.decoding import Completion, DecodingError, DecodingRule, Progress, generate, plan_batches
from parrot import CHAT, OPENED_CHAT, THINKING_CHAT, Mind, Parrot, char_tokenizer, recite
from tiny import tiny_model

OPENER = "\nAnswer: "
LOOP = "one two three "


def say(
    mind: Mind, template: str | None = CHAT, *, tags: bool = True, opener: str | None = OPENER, budget: int = 40, **rule: Any
) -> Completion:
    tokenizer = char_tokenizer(template, tags=tags)
    (completion,) = generate(
        Parrot(tokenizer, {"Q": mind}), tokenizer, ["Q"], budget_tokens=budget, rule=DecodingRule(**rule), answer_opener=opener
    )
    assert completion.generated_tokens == len(completion.token_ids) == len(completion.forced_mask) <= budget
    assert completion.forced_tokens == sum(completion.forced_mask)
    assert completion.finished == (completion.stop_reason in ("end", "forced"))
    return completion


def forced_text(completion: Completion) -> str:
    return char_tokenizer().decode([t for t, forced in zip(completion.token_ids, completion.forced_mask, strict=True) if forced])


# --- plain


def test_plain_row_ends_with_the_text():
    done = say(recite("seven."))
    assert (done.text, done.stop_reason, done.generated_tokens, done.forced_tokens) == ("seven.", "end", 7, 0)
    assert done.prompt_tokens == len("^user\nQ$\n^assistant\n")  # a special token is one token


def test_plain_row_stops_at_the_budget():
    done = say(recite("abcdefghijklmnopqrstuvwxyz"), budget=10)
    assert (done.text, done.stop_reason, done.generated_tokens) == ("abcdefghij", "budget", 10)


def test_an_end_of_text_as_last_token_of_the_budget_is_an_end():
    assert say(recite("abcdefghi"), budget=10).stop_reason == "end"


def test_every_end_of_text_counts():
    tokenizer = char_tokenizer()
    model = Parrot(tokenizer, {"Q": recite("ab;cd")})
    model.generation_config = type("G", (), {"eos_token_id": [2, tokenizer.convert_tokens_to_ids(";")]})
    (done,) = generate(model, tokenizer, ["Q"], budget_tokens=9)
    assert (done.text, done.stop_reason, done.generated_tokens) == ("ab", "end", 3)


def test_the_chat_end_counts_beside_another_end_of_text():
    tokenizer = char_tokenizer()
    tokenizer.eos_token = "Z"
    (done,) = generate(Parrot(tokenizer, {"Q": recite("ab")}), tokenizer, ["Q"], budget_tokens=9)
    assert (done.text, done.stop_reason) == ("ab", "end")


def test_raw_text_without_a_template():
    done = say(recite("seven."), None)
    assert (done.text, done.prompt_tokens) == ("seven.", 1)


# --- budget forcing


def test_the_answer_is_opened_at_the_reserve():
    done = say(recite("x" * 99, {OPENER: "7"}), budget=30, budget_forcing=True, reserve_tokens=15)
    assert done.text == "x" * 15 + OPENER + "7"
    assert done.forced_mask == (False,) * 15 + (True,) * len(OPENER) + (False,) * 2
    assert (done.stop_reason, done.finished, done.generated_tokens) == ("forced", True, 15 + len(OPENER) + 2)


def test_a_forced_row_that_never_ends_stops_at_the_budget():
    done = say(recite("x" * 99), budget=30, budget_forcing=True, reserve_tokens=15)
    assert (done.stop_reason, done.finished, done.generated_tokens, done.forced_tokens) == ("budget", False, 30, len(OPENER))


def test_a_row_that_ended_is_not_forced():
    done = say(recite("x" * 14), budget=30, budget_forcing=True, reserve_tokens=15)  # its end is token 15
    assert (done.stop_reason, done.forced_tokens, done.generated_tokens) == ("end", 0, 15)


def test_a_forced_token_is_no_end_of_text():
    tokenizer = char_tokenizer()
    model = Parrot(tokenizer, {"Q": recite("x" * 99, {"so; ": "7;"})})
    model.generation_config = type("G", (), {"eos_token_id": tokenizer.convert_tokens_to_ids(";")})
    rule = DecodingRule(budget_forcing=True, reserve_tokens=10)
    (done,) = generate(model, tokenizer, ["Q"], budget_tokens=20, rule=rule, answer_opener="so; ")
    assert (done.stop_reason, done.generated_tokens, done.forced_tokens) == ("forced", 16, 4)


@pytest.mark.parametrize(
    ("opener", "written", "forced"),
    [
        ("\nAnswer: ", "so, answer: 12 is it; xxx", False),  # whitespace and case aside
        ("\nAnswer: ", "no answer so far, xxxxxxx", True),
        ("\nFinal: \\boxed{", "thus \\boxed{12} it is xxx", False),  # any box is the answer
        ("\nFinal: \\boxed{", "to fill \\boxed{} I add xx", True),  # a quoted instruction is none
    ],
)
def test_an_answer_that_was_opened_is_not_opened_again(opener, written, forced):
    done = say(recite(written + "x" * 99), opener=opener, budget=60, budget_forcing=True, reserve_tokens=35)
    assert (done.forced_tokens > 0) == forced


def test_thinking_is_closed_at_the_reserve():
    done = say(
        recite("<think>\n" + "x" * 99, {"</think>\n\n": "7"}),
        THINKING_CHAT,
        budget=30,
        budget_forcing=True,
        reserve_tokens=15,
        thinking=True,
    )
    assert forced_text(done) == "\n</think>\n\n"
    assert done.forced_mask.index(True) == 15
    assert done.text == "<think>\n" + "x" * 13 + "\n</think>\n\n7"
    assert (done.stop_reason, done.finished) == ("forced", True)


def test_thinking_that_the_template_opened_is_closed():
    done = say(recite("x" * 99, {"</think>\n\n": "7"}), OPENED_CHAT, budget=30, budget_forcing=True, reserve_tokens=15)
    assert done.text == "x" * 15 + "\n</think>\n\n7"


def test_nothing_is_forced_when_thinking_closed_by_itself():
    script = "<think>\nxx\n</think>\n\n" + "y" * 99
    done = say(recite(script), THINKING_CHAT, budget=30, budget_forcing=True, reserve_tokens=15, thinking=True)
    assert (done.stop_reason, done.forced_tokens) == ("budget", 0)


def test_thinking_that_was_never_opened_leads_to_the_opener():
    done = say(recite("x" * 99, {OPENER: "7"}), THINKING_CHAT, budget=30, budget_forcing=True, reserve_tokens=15, thinking=True)
    assert forced_text(done) == OPENER


def test_non_thinking_mode_leads_to_the_opener():
    done = say(recite("x" * 99, {OPENER: "7"}), THINKING_CHAT, budget=30, budget_forcing=True, reserve_tokens=15)
    assert (forced_text(done), done.text) == (OPENER, "x" * 15 + OPENER + "7")


def test_an_end_of_text_in_thinking_ends_the_row():
    done = say(recite("<think>\nxx"), THINKING_CHAT, budget=30, budget_forcing=True, reserve_tokens=15, thinking=True)
    assert (done.text, done.stop_reason, done.forced_tokens) == ("<think>\nxx", "end", 0)


def test_tags_that_are_several_tokens():
    rule: dict[str, Any] = dict(tags=False, budget=60, budget_forcing=True, reserve_tokens=30, thinking=True)
    done = say(recite("<think>\n" + "x" * 99, {"</think>\n\n": "7"}), THINKING_CHAT, **rule)
    assert done.text == "<think>\n" + "x" * 22 + "\n</think>\n\n7"
    closed = say(recite("<think>\nxx\n</think>\n\n" + "y" * 99), THINKING_CHAT, **rule)
    assert (closed.stop_reason, closed.forced_tokens) == ("budget", 0)


# --- repetition stop


def test_a_repeating_answer_without_anything_to_close_stops():
    done = say(recite(LOOP, ends=False), opener=None, budget=200, repetition_stop=True)
    assert (done.stop_reason, done.finished, done.generated_tokens) == ("repetition", False, 3 * len(LOOP))


def test_repeating_reasoning_leads_to_the_answer():
    done = say(recite(LOOP, {OPENER: "7"}, ends=False), budget=200, repetition_stop=True)
    assert (done.text, done.stop_reason, done.finished) == (LOOP * 3 + OPENER + "7", "forced", True)


def test_repeating_thinking_is_closed():
    script = "<think>\n" + LOOP * 9
    done = say(recite(script, {"</think>\n\n": "7"}), THINKING_CHAT, budget=200, repetition_stop=True, thinking=True)
    assert (done.text, done.stop_reason) == ("<think>\n" + LOOP * 3 + "\n</think>\n\n7", "forced")


def test_a_row_that_repeats_again_after_the_close_stops():
    done = say(recite(LOOP, {OPENER: LOOP * 9}, ends=False), budget=200, repetition_stop=True)
    assert (done.text, done.stop_reason) == (LOOP * 3 + OPENER + LOOP * 3, "repetition")


def test_repetition_is_counted_anew_after_thinking():
    script = "<think>" + LOOP * 2 + "</think>" + LOOP * 2
    done = say(recite(script), THINKING_CHAT, budget=200, repetition_stop=True, thinking=True)
    assert (done.text, done.stop_reason) == (script, "end")


def test_a_repetition_without_room_for_an_answer_stops():
    done = say(recite(LOOP, {OPENER: "7"}, ends=False), budget=3 * len(LOOP) + len(OPENER), repetition_stop=True)
    assert (done.stop_reason, done.forced_tokens, done.generated_tokens) == ("repetition", 0, 3 * len(LOOP))


def test_both_rules_force_once():
    both: dict[str, Any] = dict(budget_forcing=True, repetition_stop=True)
    done = say(recite(LOOP, {OPENER: "y, z, " + "".join(map(chr, range(48, 120)))}, ends=False), budget=90, reserve_tokens=20, **both)
    assert (done.forced_tokens, done.forced_mask.index(True), done.stop_reason) == (len(OPENER), 3 * len(LOOP), "budget")
    late = say(recite("".join(map(chr, range(40, 120))), {OPENER: "7"}), budget=60, reserve_tokens=20, **both)
    assert (late.forced_mask.index(True), late.stop_reason) == (40, "forced")


# --- batches


def test_plan_batches_sorts_by_length_and_keeps_order():
    assert plan_batches([5, 3, 5, 1, 3], 2) == ((3, 1), (4, 0), (2,))
    assert plan_batches([], 4) == ()
    with pytest.raises(DecodingError, match="batch_size is 0"):
        plan_batches([1], 0)


MINDS = {"a": recite("x" * 3), "long prompt": recite("y" * 20), "bb": recite("z"), "ccc": recite("w" * 9), "dddd": recite("v" * 30)}


def run(batch_size: int = 5, **options: Any) -> tuple[Parrot, list[Completion]]:
    tokenizer = char_tokenizer()
    model = Parrot(tokenizer, MINDS)
    return model, generate(model, tokenizer, list(MINDS), budget_tokens=25, batch_size=batch_size, **options)


def test_rows_leave_and_padding_goes_with_them():
    model, done = run()
    assert [c.text for c in done] == ["x" * 3, "y" * 20, "z", "w" * 9, "v" * 25]
    rows = [shape[0] for shape in model.shapes]
    assert rows == [5] * 2 + [4] * 2 + [3] * 6 + [2] * 11 + [1] * 4  # rows end after 2, 4, 10 and 21 tokens
    assert model.shapes[-1][2] == 19 + 4 + 24  # the longest prompt and its padding are gone


def test_rows_leave_once_they_are_an_eighth_of_the_batch():
    tokenizer = char_tokenizer()
    lengths = {"a": 1, "b": 3} | {chr(ord("c") + n): 6 for n in range(14)}
    model = Parrot(tokenizer, {prompt: recite("x" * length) for prompt, length in lengths.items()})
    done = generate(model, tokenizer, list(lengths), budget_tokens=9)
    assert [c.generated_tokens for c in done] == [length + 1 for length in lengths.values()]
    assert [shape[0] for shape in model.shapes] == [16] * 4 + [14] * 3


def test_fixed_rows_stay():
    model, done = run(fixed_rows=True)
    assert {shape[0] for shape in model.shapes} == {5}
    assert done == [Completion(**{**_fields(c), "seconds": d.seconds}) for c, d in zip(run()[1], done, strict=True)]


def test_batch_size_changes_nothing_but_time():
    texts = {size: [c.text for c in run(size)[1]] for size in (1, 2, 5)}
    assert texts[1] == texts[2] == texts[5]


def _fields(completion: Completion) -> dict[str, Any]:
    return {name: getattr(completion, name) for name in Completion.__dataclass_fields__}


def test_completions_are_handed_on_as_rows_end():
    ended: list[tuple[int, Completion]] = []
    seen: list[Progress] = []
    _, done = run(3, refill=False, on_complete=lambda index, completion: ended.append((index, completion)), progress=seen.append)
    assert [index for index, _ in ended] == [2, 0, 3, 1, 4]  # batches (0, 2, 3) and (4, 1), each in the order of its ends
    assert [done[index] for index, _ in ended] == [completion for _, completion in ended]
    assert [(p.rows_done, p.step) for p in (seen[0], seen[9], seen[-1])] == [(0, 1), (3, 10), (5, 25)]
    assert {(p.num_rows, p.budget_tokens) for p in seen} == {(5, 25)}
    shares = [p.share for p in seen]
    assert shares == sorted(shares) and shares[0] == pytest.approx(3 / 25 / 5) and shares[-1] == 1.0


def test_seconds_add_up_to_the_time_of_the_batches_without_the_callers():
    started = time.perf_counter()
    _, done = run(progress=lambda _: time.sleep(0.01))
    wall = time.perf_counter() - started
    assert all(c.seconds > 0 for c in done)
    assert sum(c.seconds for c in done) < wall - 25 * 0.01
    assert done[4].seconds == max(c.seconds for c in done)


def test_the_models_mode_is_restored():
    tokenizer = char_tokenizer()
    model = Parrot(tokenizer, {"Q": recite("a")}).train()
    model.frozen, model.free = torch.nn.Dropout().eval(), torch.nn.Dropout()
    modes: list[bool] = []
    generate(model, tokenizer, ["Q"], budget_tokens=3, progress=lambda _: modes.append(model.training or model.free.training))
    assert modes and not any(modes)
    assert model.training and model.free.training and not model.frozen.training


def test_token_ids_are_taken_as_they_are():
    tokenizer = char_tokenizer(None)
    ids = tokenizer("Q")["input_ids"]
    model = Parrot(tokenizer, {"Q": recite("seven")})
    assert (
        generate(model, tokenizer, [ids], budget_tokens=9)[0].text == generate(model, tokenizer, ["Q"], budget_tokens=9)[0].text == "seven"
    )


# --- sampling


def test_a_rows_draws_do_not_depend_on_its_batch_mates():
    model = tiny_model("llama")
    tokenizer = char_tokenizer()
    rule = DecodingRule(temperature=1.0, top_p=0.9)
    prompts = ["one", "a second prompt", "3", "the fourth one is long"]
    together = generate(model, tokenizer, prompts, budget_tokens=12, rule=rule, seed=5)
    alone = [generate(model, tokenizer, [p], budget_tokens=12, rule=rule, keys=[(5, i)])[0] for i, p in enumerate(prompts)]
    assert [c.token_ids for c in together] == [c.token_ids for c in alone]
    other_seed = generate(model, tokenizer, prompts, budget_tokens=12, rule=rule, seed=6)
    assert all(one.token_ids != other.token_ids for one, other in zip(together, other_seed, strict=True))
    samples = generate(model, tokenizer, ["one"] * 3, budget_tokens=12, rule=rule, keys=[(5, 0, 0), (5, 0, 1), (5, 0, 0)])
    assert samples[0].token_ids == samples[2].token_ids != samples[1].token_ids


# --- refusals


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (dict(temperature=-0.1), "temperature is -0.1"),
        (dict(temperature=float("nan")), "temperature is nan"),
        (dict(temperature=1.0, top_p=0.0), "top_p is 0.0"),
        (dict(temperature=1.0, top_p=1.1), "top_p is 1.1"),
        (dict(temperature=1.0, top_k=-1), "top_k is -1"),
        (dict(top_k=5), "no meaning at temperature 0"),
        (dict(budget_forcing=True, reserve_tokens=0), "reserve_tokens is 0"),
    ],
)
def test_rules_that_cannot_be(rule, message):
    with pytest.raises(DecodingError, match=message) as caught:
        DecodingRule(**rule)
    assert "\n" not in str(caught.value)


def test_rule_names():
    names = [DecodingRule(budget_forcing=b, repetition_stop=r).name for b in (False, True) for r in (False, True)]
    assert names == ["plain", "repetition-stop", "budget-forcing", "budget-forcing+repetition-stop"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(budget_tokens=0), "budget_tokens is 0"),
        (dict(budget_tokens=-3), "budget_tokens is -3"),
        (
            dict(budget_tokens=20, rule=DecodingRule(budget_forcing=True, reserve_tokens=20)),
            "reserve_tokens 20 takes the whole budget of 20",
        ),
        (dict(budget_tokens=20, rule=DecodingRule(budget_forcing=True, reserve_tokens=9)), r"reserve_tokens 9 has no room .* \(9 tokens\)"),
        (dict(budget_tokens=20, rule=DecodingRule(budget_forcing=True, reserve_tokens=10), answer_opener=None), "nothing to force"),
        (dict(answer_opener=" "), "answer_opener is ' '"),
        (dict(rule=DecodingRule(thinking=True)), "no thinking tags"),
        (dict(prompts=[]), "no prompts"),
        (dict(prompts=["Q", ""]), "prompt 1 is empty"),
        (dict(batch_size=0), "batch_size is 0"),
        (dict(budget_tokens=4090), r"prompt 0 has \d+ tokens .* the model has 4096"),
        (dict(keys=[(1,), (2,)]), "2 keys for 1 prompts"),
        (dict(seed=-1), "draws"),
    ],
)
def test_refused_before_the_model_runs(options, message):
    tokenizer = char_tokenizer()
    model = Parrot(tokenizer, {"Q": recite("a")})
    with pytest.raises(DecodingError, match=message) as caught:
        generate(model, tokenizer, **(dict(prompts=["Q"], budget_tokens=20, answer_opener=OPENER) | options))
    assert "\n" not in str(caught.value)
    assert model.shapes == []


def test_no_end_of_text_is_refused():
    tokenizer = char_tokenizer(None)
    tokenizer.eos_token = None
    model = Parrot(tokenizer, {"Q": recite("a")})
    model.config.eos_token_id = None
    with pytest.raises(DecodingError, match="end-of-text token"):
        generate(model, tokenizer, ["Q"], budget_tokens=5)


def test_gradients_and_inference_mode_do_not_leak():
    tokenizer = char_tokenizer()
    generate(Parrot(tokenizer, {"Q": recite("a")}), tokenizer, ["Q"], budget_tokens=3)
    assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
