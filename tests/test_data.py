"""Documents and mixtures: balance, boundaries, the split by documents, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from loopwise.data import DataError, Document, balanced_mixture, check_fits, named_documents, standard_documents


class Words:
    """A tokenizer that gives each word a number and puts ``prefix`` first, as far as a mixture can see a Hugging Face one."""

    def __init__(self, prefix: tuple[int, ...] = ()) -> None:
        self.prefix = list(prefix)
        self.numbers: dict[str, int] = {}

    def __call__(self, text: str, *, add_special_tokens: bool = True, verbose: bool = True) -> Any:
        ids = [self.numbers.setdefault(word, 100 + len(self.numbers)) for word in text.split()]
        return SimpleNamespace(input_ids=self.prefix + ids if add_special_tokens else ids)


def _documents(domain: str, lengths: list[int]) -> tuple[Document, ...]:
    return named_documents(domain, [" ".join(f"{domain}{number}-{word}" for word in range(n)) for number, n in enumerate(lengths)])


DOCUMENTS = _documents("a", [50] * 8) + _documents("b", [30, 200, 45, 7, 90, 60]) + _documents("c", [400, 400])


def test_domains_have_the_same_tokens_and_documents_stay_on_their_side() -> None:
    mixture = balanced_mixture(DOCUMENTS, Words(), fit_tokens=96, score_tokens=240, window_tokens=20)
    assert mixture.num_tokens("fit") == {"a": 32, "b": 32, "c": 32}
    assert mixture.num_tokens("score") == {"a": 80, "b": 80, "c": 80}
    assert not {window.document for window in mixture.fit} & {window.document for window in mixture.score}
    assert mixture.token_ids("fit") == tuple(window.token_ids for window in mixture.fit)
    assert sum(mixture.num_documents.values()) == len({window.document for window in mixture.fit + mixture.score})


def test_a_window_is_a_stretch_of_one_document_behind_the_tokenizers_prefix() -> None:
    tokenizer = Words(prefix=(1, 2))
    mixture = balanced_mixture(DOCUMENTS, tokenizer, fit_tokens=96, score_tokens=300, window_tokens=20)
    text = {document.name: tokenizer(document.text, add_special_tokens=False).input_ids for document in DOCUMENTS}
    for windows, size in ((mixture.fit, 16), (mixture.score, 20)):
        for window in windows:
            assert window.token_ids[:2] == (1, 2) and len(window.token_ids) <= size
            ids = list(window.token_ids[2:])
            start = text[window.document].index(ids[0])
            assert text[window.document][start : start + len(ids)] == ids and start % (size - 2) == 0


def test_windows_are_equally_long_as_far_as_the_text_allows() -> None:
    mixture = balanced_mixture(DOCUMENTS, Words(), fit_tokens=96, score_tokens=249, window_tokens=20)
    assert {len(window.token_ids) for window in mixture.fit} == {16}
    assert [len(window.token_ids) for window in mixture.score] == [17] * 12 + [15] * 3
    scarce = balanced_mixture(_documents("a", [30] * 8), Words(), fit_tokens=40, score_tokens=150, window_tokens=20)
    assert sorted(len(window.token_ids) for window in scarce.score)[-6:] == [19] * 6, "whole windows first, then what is left"
    assert scarce.num_tokens("score") == {"a": 150}


def test_the_beginning_of_a_split_is_balanced_over_the_domains() -> None:
    documents = (*DOCUMENTS, *_documents("d", [4] * 400))  # no window of d is whole
    mixture = balanced_mixture(documents, Words(), fit_tokens=160, score_tokens=320, window_tokens=20)
    assert mixture.num_tokens("score") == dict.fromkeys("abcd", 80)
    for windows in (mixture.fit, mixture.score):
        counts = dict.fromkeys("abcd", 0)
        for window in windows:
            counts[window.domain] += len(window.token_ids)
            assert max(counts.values()) - min(counts.values()) <= 20
        assert [window.domain for window in windows[:4]] == list("abcd")


def test_a_tokenizer_of_another_model_is_refused() -> None:
    mixture = balanced_mixture(DOCUMENTS, Words(), fit_tokens=96, score_tokens=240, window_tokens=20)
    largest = max(token for split in (mixture.fit, mixture.score) for window in split for token in window.token_ids)
    check_fits(mixture, largest + 1)
    with pytest.raises(DataError, match=rf"token id {largest} of document '[abc]:\d', the model has {largest} ids; use the tokenizer"):
        check_fits(mixture, largest)


def test_a_tokenizer_that_makes_nothing_is_refused() -> None:
    def empty(text: str, **_: Any) -> Any:
        return SimpleNamespace(input_ids=[])

    with pytest.raises(DataError, match=r"the tokenizer makes \[\] of 'a'"):
        balanced_mixture(DOCUMENTS, empty)


def test_every_document_gives_a_window_before_one_gives_two() -> None:
    mixture = balanced_mixture(_documents("a", [100] * 10), Words(), fit_tokens=40, score_tokens=160, window_tokens=20)
    assert len({window.document for window in mixture.score}) == 8 == len(mixture.score)


def test_the_hash_follows_the_windows_and_the_seed_draws_them() -> None:
    def make(**changes: Any) -> Any:
        return balanced_mixture(DOCUMENTS, Words(), **{"fit_tokens": 96, "score_tokens": 240, "window_tokens": 20} | changes)

    assert make().sha256 == make().sha256
    assert len({make().sha256, make(seed=1).sha256, make(window_tokens=19).sha256, make(score_tokens=243).sha256}) == 4
    assert {w.document for w in make().fit} != {w.document for w in make(seed=2).fit}


@pytest.mark.parametrize(
    ("documents", "changes", "message"),
    [
        ((), {}, "no documents"),
        (_documents("a", [900]), {}, "'a' has one document"),
        (_documents("a", [900, 900]) * 2, {}, "two documents of one name"),
        (_documents("a", [900, 9]), {}, r"'a' has (9|900) tokens to .* on, .* were asked for"),
        (DOCUMENTS, {"window_tokens": 100}, "window_tokens=100 does not fit into 96 tokens divided among 3 domains"),
        (DOCUMENTS, {"window_tokens": 1}, "window_tokens=1 does not fit"),
    ],
)
def test_what_cannot_be_mixed_is_named(documents: tuple[Document, ...], changes: dict[str, int], message: str) -> None:
    with pytest.raises(DataError, match=message) as error:
        balanced_mixture(documents, Words(), **{"fit_tokens": 96, "score_tokens": 2400, "window_tokens": 20} | changes)
    assert "\n" not in str(error.value)


def test_every_python_has_prose_and_code() -> None:
    documents = standard_documents()
    assert len({document.name for document in documents}) == len(documents)
    sizes = {domain: [len(d.text) for d in documents if d.domain == domain] for domain in ("prose", "code")}
    assert len(sizes["prose"]) > 50 and len(sizes["code"]) > 50
    assert min(sum(sizes["prose"]), sum(sizes["code"])) > 300_000
    code = next(document for document in documents if document.name == "lib:bisect")
    assert code.text.startswith("def insort_right") and "bisect_left" in code.text


def test_nothing_is_imported_to_read_the_library() -> None:
    code = "import sys; from loopwise.data import *; standard_documents(); print('tarfile' in sys.modules, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1] / "src")
    assert done.stdout.split() == ["False", "False"]
