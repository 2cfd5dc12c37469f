"""Conversations into a set to fine-tune on: known shapes, answers alone, never cut, and the same bytes however it was interrupted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loopwise.data import (
    ChatTokenizerChoice,
    Conversation,
    DataError,
    EvaluationItem,
    TraceEncoder,
    TraceSet,
    TraceSettings,
    Turn,
    encode_traces,
    read_conversation,
)
from loopwise.data.chunks import Counts
from loopwise.data.trace_encoding import Dropped, EncodedTrace
from trace_sets import CHATML, ENDLESS, FORGETTING, STRIPPING, chat_folder, write_chats
from training_text import contents

QUESTION, ANSWER = "What is 3 + 8?", "<think>\nThree and eight.\n</think>\n\n3 + 8 is 11."
PLAIN = [("user", "What is 3 + 8?"), ("assistant", "It is 11.")]
CHAT = [{"role": role, "content": content} for role, content in PLAIN]


def turns(*said: tuple[str, str]) -> Conversation:
    return Conversation(turns=tuple(Turn(role=role, content=content) for role, content in said))


def text_of(ids: Sequence[int] | np.ndarray[Any, Any], choice: ChatTokenizerChoice) -> str:
    from transformers import AutoTokenizer

    return str(AutoTokenizer.from_pretrained(choice.name).decode([int(one) for one in ids]))


def encoded(encoder: TraceEncoder, *said: tuple[str, str]) -> EncodedTrace:
    made = encoder.encode(turns(*said))
    assert isinstance(made, EncodedTrace), made
    return made


def dropped(encoder: TraceEncoder, *said: tuple[str, str]) -> Dropped:
    made = encoder.encode(turns(*said))
    assert isinstance(made, Dropped)
    return made


def make(out: Path, choice: ChatTokenizerChoice, *sources: Path, items: Sequence[EvaluationItem] = (), **options: Any) -> TraceSet:
    workers = options.pop("workers", 1)
    settings = TraceSettings(sources=tuple(map(str, sources)), **{"sequence_tokens": 400, "rows_per_shard": 10} | options)
    return encode_traces(settings, choice, out, items=items, workers=workers)


@pytest.mark.parametrize(
    "row",
    [
        {"messages": CHAT, "problem": "other"},
        {"conversations": [{"from": "human", "value": PLAIN[0][1]}, {"from": "gpt", "value": PLAIN[1][1]}]},
        {
            "conversations": [{"from": "user", "value": PLAIN[0][1], "info": None}, {"from": "assistant", "value": PLAIN[1][1]}],
            "system": "",
        },
        {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": PLAIN[0][1]}]},
                CHAT[1],
                {"role": "user", "content": "thanks"},
            ]
        },
        {"prompt": PLAIN[0][1], "completion": PLAIN[1][1]},
        {"prompt": CHAT[:1], "completion": CHAT[1:]},
        {"prompt": PLAIN[0][1], "response": PLAIN[1][1]},
        {"problem": PLAIN[0][1], "generation": PLAIN[1][1], "solution": "short", "answer": "11"},
        {"problem": PLAIN[0][1], "solution": PLAIN[1][1], "answer": "11"},
        {"question": PLAIN[0][1], "answer": PLAIN[1][1]},
    ],
)
def test_the_shapes_of_public_sets_are_read(row: dict[str, Any]) -> None:
    assert read_conversation(row, "here") == turns(*PLAIN)


def test_a_systems_column_and_thinking_apart_are_kept() -> None:
    row = {"system": "Think.", "conversations": [{"from": "user", "value": "a"}, {"from": "assistant", "value": "b"}]}
    assert read_conversation(row, "here") == turns(("system", "Think."), ("user", "a"), ("assistant", "b"))
    found = read_conversation({"messages": [CHAT[0], CHAT[1] | {"reasoning_content": " So. "}]}, "here")
    assert found is not None and found.turns[1].reasoning == "So." and "So." in found.texts


def test_named_columns_and_plain_text() -> None:
    row = {"question": PLAIN[0][1], "reference": "x", "text": PLAIN[1][1]}
    assert read_conversation(row, "here", ("question", "text")) == turns(*PLAIN)
    assert read_conversation({"text": " words ", "id": 3}, "here") == Conversation(text="words")


@pytest.mark.parametrize(
    "row",
    [
        {"messages": None},
        {"messages": CHAT[:1]},
        {"messages": []},
        {"messages": CHAT[1:]},
        {"messages": [CHAT[0], {"role": "assistant", "content": None}]},
        {"question": "a", "answer": " "},
        {"prompt": None, "completion": "b"},
        {"text": "  "},
    ],
)
def test_rows_without_a_question_or_an_answer_are_none(row: dict[str, Any]) -> None:
    assert read_conversation(row, "here") is None


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"id": 1, "chosen": "x"}, r"^here: is of no known shape; it has id, chosen: name question and answer"),
        ({"question": "a", "text": "b"}, "is of no known shape; it has question, text"),
        ({}, "it has no columns"),
        ({"messages": "a chat"}, "column 'messages' holds 'a chat', no list of messages"),
        ({"messages": [{"speaker": "a"}]}, "no message with role/content or from/value; it has speaker"),
        ({"messages": [*CHAT, {"role": "tool", "content": "x"}]}, "is said by 'tool'; known are system, "),
        ({"messages": [{"role": "user", "content": 3}]}, "says '3'; give text"),
        ({"text": 5}, "column 'text' holds '5', no text"),
    ],
)
def test_rows_of_unknown_shape_are_refused_and_named(row: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message) as error:
        read_conversation(row, "here")
    assert "\n" not in str(error.value)


def test_only_answers_and_the_ends_of_their_turns_are_trained_on(tmp_path: Path) -> None:
    choice = chat_folder(tmp_path)
    trace = encoded(TraceEncoder(choice.load()), ("user", "a"), ("assistant", "first"), ("user", "b"), ("assistant", ANSWER))
    assert text_of(trace.ids[trace.trained], choice) == f"first<|im_end|>{ANSWER}<|im_end|>"
    untrained = "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n\n<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\n"
    assert text_of(trace.ids[~trace.trained], choice) == untrained and trace.num_turns_untrained == 0


@pytest.mark.parametrize(("template", "answer"), [(CHATML, ANSWER), (CHATML, "11"), (STRIPPING, ANSWER), (STRIPPING, "11"), (None, "11")])
def test_an_answer_follows_the_very_prompt_of_decoding(tmp_path: Path, template: str | None, answer: str) -> None:
    pytest.importorskip("torch")
    from torch import nn
    from transformers import AutoTokenizer

    from loopwise.decoding.chat import read_chat

    choice = chat_folder(tmp_path, template)
    trace = encoded(TraceEncoder(choice.load(), raw=template is None), ("user", QUESTION), ("assistant", answer))
    chat = read_chat(nn.Module(), AutoTokenizer.from_pretrained(choice.name))
    prompt = chat.encode(QUESTION, thinking="</think>" in answer)
    assert tuple(trace.ids[: len(prompt)].tolist()) == prompt
    assert trace.trained.tolist() == [False] * len(prompt) + [True] * (len(trace.ids) - len(prompt))
    assert int(trace.ids[-1]) in chat.end_ids


def test_decoding_knows_the_same_thinking_tags() -> None:
    pytest.importorskip("torch")
    from loopwise.data import THINKING_TAGS as ours
    from loopwise.decoding.chat import THINKING_TAGS as theirs

    assert ours == theirs


def test_a_template_that_strips_earlier_thinking_trains_the_last_answer(tmp_path: Path) -> None:
    choice = chat_folder(tmp_path, STRIPPING)
    encoder = TraceEncoder(choice.load())
    trace = encoded(encoder, ("user", "a"), ("assistant", ANSWER), ("user", "b"), ("assistant", ANSWER))
    assert text_of(trace.ids[trace.trained], choice) == f"{ANSWER}<|im_end|>" and trace.num_turns_untrained == 1
    assert text_of(trace.ids, choice).count("Three and eight.") == 1  # as the model sees it in decoding


def test_thinking_that_the_template_leaves_out_is_refused(tmp_path: Path) -> None:
    encoder = TraceEncoder(chat_folder(tmp_path, FORGETTING).load())
    assert encoded(encoder, *PLAIN).trained.any()
    with pytest.raises(DataError, match=r"^row 3: thinks, and its chat template leaves thinking out; give another as --chat-template"):
        encoder.encode(turns(("user", "a"), ("assistant", ANSWER)), "row 3")


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "has no chat template; name a file as --chat-template, or give --raw"),
        (ENDLESS, "in which no special token is: a model could not learn to stop"),
        (
            "{{ raise_exception('never') }}",
            r"its chat template cannot be used: the chat template refuses the turns user, assistant \(never\)",
        ),
        ("{{ 1 +", "its chat template cannot be used"),
        (
            CHATML.replace("assistant\n' }}{% endif", "model\n' }}{% endif"),
            "cannot be trained with: of a question and its answer, begins otherwise",
        ),
    ],
)
def test_templates_that_cannot_be_trained_with_are_refused_at_once(tmp_path: Path, template: str | None, message: str) -> None:
    with pytest.raises(DataError, match=message) as error:
        TraceEncoder(chat_folder(tmp_path, template).load())
    assert "\n" not in str(error.value)


def test_a_tokenizer_without_end_or_pad_token_is_refused(tmp_path: Path) -> None:
    choice = chat_folder(tmp_path, pad=False)
    with pytest.raises(DataError, match=r"^tokenizer 'bytes': has no pad token; name one of its tokens as --pad-token"):
        choice.load()
    assert replace(choice, pad_token="<|im_end|>").load().pad_token_id == 258
    with pytest.raises(DataError, match="has no token '<end>'; name one of its tokens as --end-token"):
        replace(choice, pad_token="<|im_end|>", end_token="<end>").load()
    values = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({key: value for key, value in values.items() if key != "eos_token"}))
    with pytest.raises(DataError, match="has no end-of-text token of its own"):
        replace(choice, pad_token="<|im_end|>").load()


def test_a_template_with_todays_date_gives_the_same_text_on_every_day(tmp_path: Path) -> None:
    choice = chat_folder(tmp_path, "{{ 'Today: ' + strftime_now('%d %b %Y') + '\n' }}" + CHATML)
    trace = encoded(TraceEncoder(choice.load()), *PLAIN)
    assert text_of(trace.ids, choice).startswith("Today: 1 January 2025\n<|im_start|>user")


def test_marks_in_words_are_not_taken_for_the_templates(tmp_path: Path) -> None:
    encoder = TraceEncoder(chat_folder(tmp_path).load())
    assert dropped(encoder, ("user", "a"), ("assistant", "b<|im_end|>\n<|im_start|>user\nc")).reason == "special"
    assert dropped(encoder, ("user", "a \ud800"), ("assistant", "b")).reason == "special"


def test_an_answer_that_would_melt_into_the_prompt_is_left_out(tmp_path: Path) -> None:
    encoder = TraceEncoder(chat_folder(tmp_path, merges=["Ċ Ċ"]).load())  # a token for two line ends
    assert dropped(encoder, ("user", "a"), ("assistant", "\nb")).reason == "merged"
    assert encoded(encoder, ("user", "a"), ("assistant", "b\n\nc")).trained.sum() == 4


def test_raw_traces_are_a_question_its_answer_and_the_end(tmp_path: Path) -> None:
    choice = chat_folder(tmp_path, None)
    encoder = TraceEncoder(choice.load(), raw=True)
    trace = encoded(encoder, *PLAIN)
    assert text_of(trace.ids, choice) == "What is 3 + 8?It is 11.<|endoftext|>"
    assert text_of(trace.ids[trace.trained], choice) == "It is 11.<|endoftext|>"
    assert dropped(encoder, *PLAIN, *PLAIN).what.startswith("has the turns user, assistant, user, assistant; raw")


def test_plain_text_is_trained_on_whole(tmp_path: Path) -> None:
    choice = chat_folder(tmp_path)
    trace = TraceEncoder(choice.load()).encode(Conversation(text="words"))
    assert isinstance(trace, EncodedTrace) and text_of(trace.ids, choice) == "words<|endoftext|>"
    assert trace.trained.tolist() == [False] + [True] * 5


def test_no_trace_is_cut_and_every_row_is_counted(tmp_path: Path) -> None:
    choice = chat_folder(tmp_path / "tokenizer")
    overhead = len(encoded(TraceEncoder(choice.load()), ("user", "q"), ("assistant", "a")).ids) - 1
    wording = "a train leaves the station at noon and travels sixty miles in one hour exactly"
    rows = [
        {"question": "q", "answer": "x" * (101 - overhead)},  # 101 tokens: 100 inputs
        {"question": "q", "answer": "y" * (102 - overhead)},
        {"question": "q", "answer": "z"},
        {"question": "q", "answer": "z"},
        {"question": "q", "answer": ""},
        {"question": f"Say: {wording.upper()}", "answer": "z"},
        {"question": "q", "answer": "<|im_end|>"},
    ]
    items = [EvaluationItem(benchmark="trains", name="1", text=wording)]
    write_chats(tmp_path / "a.jsonl", rows)
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write("\n")
    traces = make(tmp_path / "out", choice, tmp_path / "a.jsonl", items=items, sequence_tokens=100)
    names = ("rows", "kept", "too_long", "duplicate", "without_answer", "decontaminated", "special", "altered", "merged", "refused")
    counts = {name: traces.report[f"num_{name}"] for name in names}
    assert list(counts.values()) == [8, 2, 1, 1, 2, 1, 1, 0, 0, 0]
    assert sum(list(counts.values())[1:]) == counts["rows"]
    assert [len(traces.read(number)[0]) for number in range(2)] == [101, overhead + 1]
    assert traces.report["num_tokens"] == traces.num_tokens == 102 + overhead
    assert traces.report["num_answer_tokens"] == traces.num_answer_tokens == (101 - overhead + 1) + 2
    assert traces.report["shortest_too_long"] == 102
    assert "row 6: says '<|im_end|>'" in traces.report["examples"]["special"]
    found = json.loads((tmp_path / "out" / "decontamination.json").read_text())
    assert found["num_dropped"] == 1 and found["benchmarks"]["trains"]["num_documents_dropped"] == 1


def many_chats(file: Path, number: int = 73) -> Path:
    rows = [{"question": f"{n}?", "answer": f"{n % 60} " + "word " * (n % 17)} for n in range(number)]
    return write_chats(file, rows)


def test_the_number_of_workers_does_not_show(tmp_path: Path) -> None:
    choice = chat_folder(tmp_path / "tokenizer")
    sources = [many_chats(tmp_path / "a.jsonl"), many_chats(tmp_path / "b.jsonl", 31)]
    one = make(tmp_path / "one", choice, *sources, sequence_tokens=90)
    two = make(tmp_path / "two", choice, *sources, sequence_tokens=90, workers=2)
    assert contents(tmp_path / "one") == contents(tmp_path / "two") and one.sha256 == two.sha256
    assert one.report["num_duplicate"] > 20 and one.report["num_too_long"] > 0


def test_what_was_interrupted_goes_on_to_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choice = chat_folder(tmp_path / "tokenizer")
    source = many_chats(tmp_path / "a.jsonl")
    make(tmp_path / "whole", choice, source)
    settings = TraceSettings(sources=(str(source),), sequence_tokens=400, rows_per_shard=10)
    monkeypatch.setattr("loopwise.data.chunks._POLL_SECONDS", 0.0)

    def stop(counts: Counts) -> None:
        if counts.num_rows >= 30:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        encode_traces(settings, choice, tmp_path / "cut", progress=stop)
    kept = {file.name: file.stat().st_mtime_ns for file in (tmp_path / "cut").glob("*.tokens")}
    assert len(kept) == 3 and not (tmp_path / "cut" / "index.json").exists()
    (tmp_path / "cut" / "half.tokens.1.part").write_bytes(b"half")
    encode_traces(settings, choice, tmp_path / "cut")
    assert contents(tmp_path / "whole") == contents(tmp_path / "cut")
    assert kept.items() <= {file.name: file.stat().st_mtime_ns for file in (tmp_path / "cut").glob("*.tokens")}.items()
    again = encode_traces(settings, choice, tmp_path / "cut")
    assert again.sha256 == TraceSet.open(tmp_path / "whole").sha256


def test_a_set_is_bound_to_its_settings_tokenizer_and_template(tmp_path: Path) -> None:
    choice = chat_folder(tmp_path / "tokenizer")
    source = many_chats(tmp_path / "a.jsonl", 12)
    one = make(tmp_path / "out", choice, source)
    with pytest.raises(DataError, match="was made with another sequence_tokens"):
        make(tmp_path / "out", choice, source, sequence_tokens=300)
    other = replace(choice, template=CHATML + "{{ '' }}")
    with pytest.raises(DataError, match="was made with another template_sha256"):
        make(tmp_path / "out", other, source)
    assert make(tmp_path / "other", other, source).sha256 != one.sha256
    assert one.tokenizer_folder is not None and (one.tokenizer_folder / "tokenizer.json").exists()


@pytest.mark.skipif(find_spec("pyarrow") is None, reason="pyarrow comes with the hub extra")
def test_parquet_and_jsonl_give_the_same_traces(tmp_path: Path) -> None:
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    choice = chat_folder(tmp_path / "tokenizer")
    rows = [{"id": n, "messages": [CHAT[0], {"role": "assistant", "content": f"{n}"}]} for n in range(25)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet", row_group_size=7)
    one = make(tmp_path / "one", choice, write_chats(tmp_path / "a.jsonl", rows))
    two = make(tmp_path / "two", choice, tmp_path / "a.parquet")
    assert one.sha256 == two.sha256 and len(one) == 25


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(sequence_tokens=20), "no trace is kept; 12 of 12 rows are left out as longer than a row of 20 tokens, the shortest has"),
        (dict(sequence_tokens=1), "sequence_tokens is 1; give at least 2"),
        (dict(question="question"), "give both, or neither"),
        (dict(question="asks", answer="answer"), "has no column 'asks'; it has question, answer"),
        (dict(max_rows=0), "max_rows is 0"),
        (dict(workers=0), "workers is 0"),
    ],
)
def test_settings_that_cannot_be_are_refused_in_a_line(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    choice = chat_folder(tmp_path / "tokenizer")
    with pytest.raises(DataError, match=message) as error:
        make(tmp_path / "out", choice, many_chats(tmp_path / "a.jsonl", 12), **options)
    assert "\n" not in str(error.value)


def test_rows_beyond_the_models_context_are_refused_before_anything_is_read(tmp_path: Path) -> None:
    choice = chat_folder(tmp_path / "tokenizer")
    (tmp_path / "tokenizer" / "config.json").write_text(json.dumps({"text_config": {"max_position_embeddings": 256}}))
    with pytest.raises(DataError, match="sequence_tokens is 257, bytes reads 256 at most"):
        make(tmp_path / "out", choice, many_chats(tmp_path / "a.jsonl", 2), sequence_tokens=257)
    assert not (tmp_path / "out").exists()
    assert len(make(tmp_path / "out", choice, tmp_path / "a.jsonl", sequence_tokens=256)) == 2
