"""The parts of decoding: repetition, draws, chat formats, letters."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from loopwise.decoding import DecodingError, DecodingRule, RepetitionWatch, read_chat, repeats, score_letters
from loopwise.decoding.sampling import Picker, draw
from parrot import CHAT, OPENED_CHAT, THINKING_CHAT, char_tokenizer
from tiny import tiny_model

# --- repetition


def hits(rows: list[list[int]]) -> list[list[bool]]:
    watch = RepetitionWatch(len(rows), len(rows[0]))
    return [list(row) for row in zip(*(watch.update(column) for column in zip(*rows, strict=True)), strict=True)]


@pytest.mark.parametrize(
    ("period", "needed"),
    [(4, 12), (5, 15), (256, 768), (257, None), (1, 12), (2, 12), (3, 18)],  # short periods as 4 or 6 tokens
)
def test_periods_from_4_to_256_three_times(period, needed):
    text = [1000, 1001] + [*range(period)] * (3 if period > 3 else 20)
    (row,) = hits([text])
    assert row == [repeats(text[: end + 1]) for end in range(len(text))]
    assert (row.index(True) - 1 if any(row) else None) == needed
    assert not any(hits([text[:2] + [*range(period)] * 2])[0])


def test_the_watch_is_the_definition():
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(12):
        row: list[int] = []
        while len(row) < 400:  # noise, then a stretch a few times, sometimes with a fault in it
            stretch = rng.integers(0, 3, size=rng.integers(2, 40)).tolist()
            row += rng.integers(0, 3, size=rng.integers(0, 9)).tolist() + stretch * int(rng.integers(1, 6))
            if rng.random() < 0.3:
                row[-int(rng.integers(1, len(stretch) + 1))] += 1
        rows.append(row[:400])
    found = hits(rows)
    assert found == [[repeats(row[: end + 1]) for end in range(400)] for row in rows]
    assert 100 < sum(map(sum, found)) < 4000


def test_restart_and_keep():
    watch = RepetitionWatch(3, 60)
    text = [1, 2, 3, 4] * 15
    for place, token in enumerate(text[:11]):
        assert watch.update([token, token, -place - 2]) == [False] * 3
    watch.restart(1)
    assert watch.update([text[11]] * 3) == [True, False, False]
    watch.keep([1, 2])
    later = [watch.update([token] * 2) for token in text[12:24]]
    assert [row[0] for row in later].index(True) == 10  # the token after the restart is the first of its 12
    assert later[-1] == [True, True]


def test_runs_go_with_their_rows():
    watch = RepetitionWatch(2, 20)
    for place in range(11):
        watch.update([-place - 2, place % 4])
    watch.keep([1])
    assert watch.update([3]) == [True]


# --- draws


def test_draws_follow_hugging_faces_distribution():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(1, 12, generator=generator) * 2
    rule = DecodingRule(temperature=0.8, top_k=8, top_p=0.85)
    warped = TopPLogitsWarper(0.85)(None, TopKLogitsWarper(8)(None, TemperatureLogitsWarper(0.8)(None, logits.clone())))
    expected = torch.softmax(warped, -1)[0]
    uniform = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    drawn = draw(logits.expand(20_000, -1), uniform, rule)
    frequency = torch.bincount(drawn, minlength=12) / 20_000
    torch.testing.assert_close(frequency, expected, atol=1e-4, rtol=0)
    assert 1 < int((expected > 0).sum()) < 8


@pytest.mark.parametrize(
    "rule", [DecodingRule(temperature=1.0), DecodingRule(temperature=1.0, top_p=0.5), DecodingRule(temperature=1.0, top_k=2)]
)
def test_the_ends_of_the_unit_interval_draw_possible_tokens(rule):
    logits = torch.tensor([[-torch.inf, 2.0, -torch.inf, 2.0, 1.0, -torch.inf]])
    for uniform in (0.0, 1 - 2**-53):
        token = int(draw(logits, torch.tensor([uniform], dtype=torch.float64), rule))
        assert token in ((1, 3) if rule.top_k or rule.top_p < 1 else (1, 3, 4))


def test_top_p_always_keeps_the_most_likely_token():
    rule = DecodingRule(temperature=1.0, top_p=1e-9)
    logits = torch.randn(50, 30)
    assert torch.equal(draw(logits, torch.rand(50, dtype=torch.float64), rule), logits.argmax(-1))


def test_rows_draw_from_their_own_stream():
    rule = DecodingRule(temperature=1.0)
    logits = torch.zeros(3, 1000)
    many = Picker(rule, [(0, 1), (0, 2), (1, 1)], 5, torch.device("cpu"))
    first = many.pick(logits)
    many.keep(torch.tensor([2, 0]))
    second = many.pick(logits[:2])
    alone = Picker(rule, [(1, 1)], 5, torch.device("cpu"))
    assert [alone.pick(logits[:1])[0], alone.pick(logits[:1])[0]] == [first[2], second[0]]
    assert len(set(first)) == 3


# --- chat


def chat_of(template: str | None, *, tags: bool = True):
    return read_chat(tiny_model("llama"), char_tokenizer(template, tags=tags))


def test_a_template_that_writes_the_date_asks_alike_on_every_day():
    dated = "{{ 'Today: ' + strftime_now('%d %b %Y') + ' ' }}" + CHAT
    assert chat_of(dated).render("hi").startswith("Today: 1 January 2025 ")


def test_templates_and_modes():
    asked = "<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n"
    assert chat_of(CHAT).render("Q") == chat_of(CHAT).render("Q", thinking=True) == asked
    assert chat_of(THINKING_CHAT).render("Q", thinking=True) == asked
    assert chat_of(THINKING_CHAT).render("Q") == asked + "<think>\n\n</think>\n\n"
    assert chat_of(None).render("Q") == "Q"


@pytest.mark.parametrize(("template", "first"), [(CHAT, "<|im_start|>user"), (None, "<|im_start|>Q")])
def test_a_start_of_text_is_written_once(template, first):
    tokenizer = char_tokenizer(template)
    start = TemplateProcessing(single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)])
    tokenizer.backend_tokenizer.post_processor = start
    chat = read_chat(tiny_model("llama"), tokenizer)
    assert tokenizer.decode(chat.encode("Q")).startswith(first)
    assert chat.encode((4, 5)) == (4, 5)
    assert 1 not in chat.continuation("Q")


@pytest.mark.parametrize(
    ("template", "tags", "closing"),
    [
        (THINKING_CHAT, True, "\n</think>\n\n"),
        (OPENED_CHAT, True, "\n</think>\n\n"),
        (CHAT + "{{ '</think>\\n' }}", True, "</think>\n"),
        (CHAT + "{{ content.split('</think>') }}", True, "</think>\n\n"),
        (CHAT + "{{ '[THINK]a[/THINK]' }}", True, "[/THINK]\n\n"),
        (None, True, "\n</think>\n\n"),
        (CHAT, True, None),
        (None, False, None),
    ],
)
def test_closing_text_is_the_templates(template, tags, closing):
    thinking = chat_of(template, tags=tags).thinking
    assert (thinking and thinking.closing_text) == closing


def test_where_thinking_stands():
    assert not chat_of(THINKING_CHAT).starts_in_thinking("Q", thinking=True)
    assert not chat_of(THINKING_CHAT).starts_in_thinking("Q")
    chat = chat_of(OPENED_CHAT)
    assert chat.starts_in_thinking("Q") and chat.starts_in_thinking("say </think>") and chat.starts_in_thinking(chat.encode("Q"))
    assert not chat_of(CHAT).starts_in_thinking("end with <think>")
    assert chat_of(None).starts_in_thinking("go <think>") and not chat_of(None).starts_in_thinking("<think></think>")


@pytest.mark.parametrize("special", [False, True])
def test_text_keeps_tags_and_hides_special_tokens(special):
    tokenizer = char_tokenizer(THINKING_CHAT)
    if special:
        tokenizer.add_special_tokens({"extra_special_tokens": ["<think>", "</think>"]})
        assert tokenizer.convert_tokens_to_ids("<think>") in tokenizer.all_special_ids
    chat = read_chat(tiny_model("llama"), tokenizer)
    ids = chat.tokenizer("<think>a</think>b")["input_ids"]
    assert chat.text([0, *ids, 1, 2]) == "<think>a</think>b"


def test_a_continuation_has_no_blank_in_front():
    pieces = {piece: place for place, piece in enumerate(["<unk>", "</s>", "▁x", "▁a", "x", "a", "▁"])}
    inner = Tokenizer(models.WordPiece(pieces, unk_token="<unk>", continuing_subword_prefix=""))
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="</s>", unk_token="<unk>")
    assert tokenizer("a")["input_ids"] == [pieces["▁a"]]
    assert read_chat(tiny_model("llama"), tokenizer).continuation("a") == (pieces["a"],)


# --- letters


def test_letters_are_the_full_models_logits():
    model = tiny_model("gemma2", final_logit_softcapping=3.0)
    tokenizer = char_tokenizer(CHAT, tags=False)
    prompts = ["Which?", "Which one of these is it?", "What"]
    choices = score_letters(model, tokenizer, prompts, ["ABCD", "AB", "123"], answer_opener="Answer: ", batch_size=2)
    for prompt, choice, letters in zip(prompts, choices, ("ABCD", "AB", "123"), strict=True):
        ids = torch.tensor([tokenizer(read_chat(model, tokenizer).render(prompt) + "Answer: ")["input_ids"]])
        logits = model(input_ids=ids).logits[0, -1, tokenizer.convert_tokens_to_ids(list(letters))]
        torch.testing.assert_close(torch.tensor(choice.logits), logits.detach(), rtol=1e-4, atol=1e-4)
        assert (choice.letter, choice.num_tied, choice.prompt_tokens) == (letters[int(logits.argmax())], 1, ids.shape[1])
        assert choice.seconds > 0


def test_bf16_models_are_compared_in_fp32():
    model = tiny_model("llama").to(torch.bfloat16)
    tokenizer = char_tokenizer(CHAT, tags=False)
    (choice,) = score_letters(model, tokenizer, ["Which?"], ["ABCDEFGH"])
    assert any(logit != float(torch.tensor(logit).bfloat16()) for logit in choice.logits)


def test_ties_are_counted_and_the_first_is_taken():
    model = tiny_model("llama")
    tokenizer = char_tokenizer(CHAT, tags=False)
    ids = tokenizer.convert_tokens_to_ids(list("ABC"))
    with torch.no_grad():
        model.lm_head.weight[ids] = model.lm_head.weight[ids[0]].clone()
    (choice,) = score_letters(model, tokenizer, ["Which?"], ["ABC"])
    assert (choice.letter, choice.num_tied) == ("A", 3)


def test_an_option_is_its_token_in_context():
    """After running text the option has a blank before it, after a line's end it has none: other tokens."""
    words = {word: place for place, word in enumerate(["<pad>", "x", "</s>", "A", "B", "ĠA", "ĠB", "Ċ", "Ġ"])}
    inner = Tokenizer(models.WordLevel(words, unk_token="x"))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="</s>", pad_token="<pad>")
    model = tiny_model("llama")
    for prompt, opener, options in (("x", "", [5, 6]), ("x\n", "", [3, 4]), ("x", "\n", [3, 4]), ([1, 7], "", [3, 4]), ([1], "", [5, 6])):
        (choice,) = score_letters(model, tokenizer, [prompt], ["AB"], answer_opener=opener)
        ids = [1, 7] if options == [3, 4] else [1]
        logits = model(input_ids=torch.tensor([ids])).logits[0, -1, options]
        torch.testing.assert_close(torch.tensor(choice.logits), logits.detach(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("prompts", "letters", "message"),
    [
        ([], [], "no prompts"),
        (["Q"], ["A", "B"], "2 sets of letters for 1 prompts"),
        (["Q"], [""], "prompt 0 has no options"),
        (["Q"], [["1a", "2a"]], "end in the same token"),
        ([""], ["AB"], "prompt 0 is empty"),
    ],
)
def test_letters_that_cannot_be(prompts, letters, message):
    with pytest.raises(DecodingError, match=message):
        score_letters(tiny_model("llama"), char_tokenizer(), prompts, letters)
