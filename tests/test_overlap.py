"""Text that a placement was chosen on and items that it is judged on share nothing, or there is no trial."""

from __future__ import annotations

import errno
import hashlib
import json
import threading
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import loopwise.recipes.trial as trial_module
from data import data_dir
from loopwise.cli import main
from loopwise.data import (
    TEXT_HASHES_FILE,
    DataError,
    Document,
    TextHashes,
    balanced_mixture,
    hash_documents,
    named_documents,
    overlapping,
    read_text_hashes,
    shingle_hashes,
    used_documents,
    without_wording,
    write_text_hashes,
)
from loopwise.loops import format_loops
from loopwise.models import insert, save
from loopwise.protocol import TrialError
from loopwise.recipes.selection import check_apart, loops_of_study, read_selection
from loopwise.recipes.trial import trial
from loopwise.recipes.trial_settings import TrialSettings
from loopwise.records import CandidateResult, StudyError, StudyWriter
from loopwise.tasks import GSM8K, LADDER, ladder_of, worked_text
from tiny import tiny_model, tiny_tokenizer

QUESTION = "Mia packs 24 jars of plum jam into boxes of six. Each box sells for $15. How much money does she take, if she sells every box?"
FILLER = "Here is a page about something else entirely, with sentences that no question has. " * 3
LOOPS = "1:4 x2 damped beta=0.25"


def hashes_of(*texts: str) -> frozenset[str]:
    return hash_documents(named_documents("web", texts)).hashes


def found(text: str, *selection: str, **how: bool) -> bool:
    return overlapping([("item", text)], hashes_of(*selection), **how) == ("item",)


# --- hashes --------------------------------------------------------------------------------------------------------------


def test_a_hash_is_that_of_thirteen_lower_cased_words() -> None:
    text = "One, two; THREE four-five six (seven) eight nine ten eleven twelve Thirteen"
    wanted = "one two three four five six seven eight nine ten eleven twelve thirteen"
    grams = [wanted] + [" ".join(wanted.split()[n : n + 5]) for n in range(9)]
    assert shingle_hashes(text) == {hashlib.sha256(gram.encode()).hexdigest()[:16] for gram in grams}
    assert shingle_hashes("only four words here") == frozenset()
    assert len(shingle_hashes("no more than five words")) == 1


@pytest.mark.parametrize(
    "copied",
    [
        QUESTION,
        QUESTION.upper(),
        QUESTION.replace(" ", "\n\t "),
        QUESTION.replace("jars", "**jars**").replace("$15", "＄１５"),
        "Q: " + QUESTION[:85] + " ...",
        QUESTION[20:],
    ],
)
def test_a_copied_question_is_found_inside_a_document(copied: str) -> None:
    assert found(QUESTION, FILLER + copied + FILLER)


@pytest.mark.parametrize(
    "unrelated",
    [
        FILLER,
        QUESTION.replace("jam", "sauce").replace("sells for", "goes for").replace("money does", "cash does").replace("packs", "puts"),
        " ".join(reversed(QUESTION.split())),
        "Mia packs 24 jars of plum jam into boxes of six.",
    ],
)
def test_other_text_is_not(unrelated: str) -> None:
    assert not found(QUESTION, FILLER + unrelated + FILLER)


def test_words_of_two_documents_do_not_join() -> None:
    halves = QUESTION.split()
    assert not found(QUESTION, FILLER + " ".join(halves[:12]), " ".join(halves[12:23]) + " " + FILLER)


@pytest.mark.parametrize(
    ("item", "text", "is_in"),
    [
        ("What is the sum of 3 and 8?", "He asked: what is THE sum of 3 and 8? Nobody knew.", True),
        ("What is the sum of 3 and 8?", "What is the sum of 3 and 9? And is the sum of 4 and 8?", False),
        ("What is 3 + 8?", "What is 3 + 8? 11.", True),
        ("What is 3 + 8?", "What is 3 + 8 * 2?", False),
        ("What is 3 + 8 * 2?", "What is 3 + 8?", False),
        ("What is 3 * (4 + 5)?", "What is 3 * 4 + 5?", False),
        ("What is 3 * 4 + 5?", "What is 3 + 4 * 5?", False),
        ("12 + 34 =", "12 + 34 = 46", False),
        ("Is that so?", "Is that so? It is.", False),
        ("水の沸点は何度か。", "問題：水の沸点は何度か。答え", True),
    ],
)
def test_a_short_item_is_found_where_it_stands_as_a_whole(item: str, text: str, is_in: bool) -> None:
    assert found(item, FILLER + text + FILLER) == is_in
    assert not found(item, FILLER + text + FILLER, short=False)


def test_items_from_templates_are_found_as_wholes_only() -> None:
    item = "Anna has 5 apples. Anna loses 3 of them. How many apples does Anna have now?"
    other = "Anna has 9 apples. Anna loses 3 of them. How many apples does Anna have now?"
    assert found(item, other) and not found(item, other, whole=True)
    assert found(item, item, whole=True)


def test_the_wording_of_a_task_belongs_to_no_item() -> None:
    prompts = ["Solve this.\nA line\nof one.\n\nThink step by step.", "Solve this.\nAnother.\n\nThink step by step."]
    assert without_wording(prompts) == ("A line\nof one.", "Another.")
    assert without_wording(["a\nsame\nb", "a\nb"]) == ("same\nb", "b"), "a line is left of each"
    assert without_wording(["one\nline"]) == ("one\nline",) and without_wording(["x\ny"] * 2) == ("x\ny", "x\ny")
    assert without_wording([]) == ()


def test_the_ladders_worked_text_and_training_problems_share_no_test_item() -> None:
    """What a search may read or be scored on by default; each of these items shares wording with some of it."""
    task = ladder_of("0-9")
    training = [item.prompt for item in task.load(None, None, "train")]
    hashes = hashes_of(*worked_text(0, 150), *training)
    prompts = without_wording([item.prompt for item in task.load()])
    items = [(f"{number}", prompt) for number, prompt in enumerate(prompts)]
    assert overlapping(items, hashes, whole=True) == ()
    assert len(overlapping(items, hashes)) > 10
    assert overlapping(items, hashes | shingle_hashes(prompts[3]), whole=True) == ("3",)


def test_a_real_question_is_found_in_another_case_and_spacing() -> None:
    items = GSM8K.load(data_dir(), 50)
    prompts = without_wording([item.prompt for item in items])
    copied = FILLER + prompts[7].upper().replace(" ", "  ") + FILLER
    assert overlapping([(item.name, prompt) for item, prompt in zip(items, prompts, strict=True)], hashes_of(copied)) == (items[7].name,)


# --- the file ------------------------------------------------------------------------------------------------------------


def word_tokens(text: str, **_: Any) -> Any:
    return SimpleNamespace(input_ids=[100 + len(word) for word in text.split()])


def test_documents_that_gave_a_window_are_hashed_whole(tmp_path: Path) -> None:
    texts = [f"document {n} begins here " + " ".join(f"word{n}x{k}" for k in range(60)) for n in range(9)]
    documents = named_documents("web", texts)
    mixture = balanced_mixture(documents, word_tokens, fit_tokens=20, score_tokens=40, window_tokens=20)
    used = used_documents(mixture, documents)
    assert {document.name for document in used} == {window.document for window in mixture.fit + mixture.score}
    assert 2 <= len(used) < 9
    hashes = read_text_hashes(write_text_hashes(tmp_path, hash_documents(used)).parent)
    assert hashes.documents == {document.name: "web" for document in used}
    endings = [(document.name, " ".join(document.text.split()[-15:])) for document in documents]
    assert set(overlapping(endings, hashes.hashes)) == set(hashes.documents)
    values = json.loads((tmp_path / TEXT_HASHES_FILE).read_text())
    assert values["ngram"] == 13 and values["hashes"] == sorted(values["hashes"])


def test_searches_of_one_study_add_their_hashes(tmp_path: Path) -> None:
    parts = [hash_documents([Document(name=f"d{n}", domain="task", text=f"{n} " + QUESTION[n:])]) for n in range(8)]
    threads = [threading.Thread(target=write_text_hashes, args=(tmp_path, part)) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    there = read_text_hashes(tmp_path)
    assert there.hashes == frozenset().union(*(part.hashes for part in parts)) and len(there.documents) == 8
    before = (tmp_path / TEXT_HASHES_FILE).stat().st_mtime_ns
    write_text_hashes(tmp_path, parts[3])
    assert (tmp_path / TEXT_HASHES_FILE).stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "has no text_hashes.json, so nobody can say what text it was made on"),
        ("{", r"text_hashes\.json: damaged \(JSONDecodeError\)"),
        ("[]", "damaged"),
        ('{"ngram": 13, "short_ngram": 5}', r"damaged \(KeyError\)"),
        ('{"ngram": 8, "short_ngram": 5, "documents": {}, "hashes": ["0123456789abcdef"]}', r"hashes of \(8, 5\) words"),
        ('{"ngram": 13, "short_ngram": 5, "documents": {}, "hashes": ["no"]}', "holds something else than hashes"),
        ('{"ngram": 13, "short_ngram": 5, "documents": {}, "hashes": ' + "[" * 200_000, r"damaged \(RecursionError\)"),
    ],
)
def test_hashes_that_cannot_be_read_are_named(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / TEXT_HASHES_FILE).write_text(content)
    with pytest.raises(DataError, match=message) as error:
        read_text_hashes(tmp_path)
    assert "\n" not in str(error.value)


# --- the trial -----------------------------------------------------------------------------------------------------------


def study(folder: Path, *texts: str, results: Iterable[CandidateResult] = ()) -> Path:
    """A study's folder, made on these texts."""
    StudyWriter(folder, {"model": "tiny", "num_layers": 6, "mixture_sha256": "ab" * 32}).append(results)
    write_text_hashes(folder, hash_documents(named_documents("web", texts)))
    return folder


def result(loops: str, loss: float, **changes: Any) -> CandidateResult:
    return CandidateResult(**{"loops": loops, "layer_pass_ratio": 1.5, "status": "scored", "values": {"loss_nats": loss}} | changes)


RESULTS = (
    result("", 1.0),
    result("0:2 x2 damped beta=0.5", 2.5),
    result(LOOPS, 2.0),
    result("2:4 x2", 1.5, share=0.5),
    result("3:5 x2", 1.2, status="dropped"),
    result("1:3 x2", 0.1, measure="accuracy:ladder"),
    CandidateResult(loops="0:6 x4", layer_pass_ratio=4.0, status="ruined"),
)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    save(tiny_model("llama"), tiny_tokenizer(), tmp_path / "base")  # type: ignore[arg-type]
    return tmp_path / "base"


def no_model(*_: Any, **__: Any) -> Any:
    raise AssertionError("a model was loaded")


def test_a_trial_on_items_of_the_selection_text_is_refused_before_a_model_is_loaded(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_module, "load", no_model)
    question = LADDER.load(None, 6)[4].prompt.split("\n")[0]
    folder = study(tmp_path / "study", FILLER + question.lower() + FILLER, results=RESULTS)
    settings = TrialSettings(limit=6, placement=folder)
    with pytest.raises(TrialError, match=r"text of 1 items? is in the text that .*study.*, the first is 'rung1-0001' of ladder") as error:
        trial(base, out=tmp_path / "out", loops=LOOPS, settings=settings)
    assert "\n" not in str(error.value) and not (tmp_path / "out").exists()
    check_apart(folder, [LADDER], data=None, limit=4)


def test_one_item_alone_is_told_from_its_wording(tmp_path: Path) -> None:
    first = LADDER.load(None, 1)[0]
    folder = study(tmp_path / "study", FILLER + first.prompt.split("\n")[0])
    with pytest.raises(TrialError, match="the first is 'rung0-0000' of ladder"):
        check_apart(folder, [LADDER], data=None, limit=1)


def test_worked_answers_count_and_the_instruction_does_not(tmp_path: Path) -> None:
    file = tmp_path / "test.jsonl"
    worked = "She fills 24 / 6 = 4 boxes, and four boxes at 15 dollars each bring 60 dollars in all.\n#### 60"
    rows = [{"question": QUESTION, "answer": worked}, {"question": "How many?", "answer": "Two boxes are enough for me.\n#### 2"}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    instruction = GSM8K.load(file)[1].prompt.replace("How many?", "And how many is that?")
    check_apart(study(tmp_path / "a", instruction, "Two boxes are enough for me."), [GSM8K], data=file, limit=None)
    with pytest.raises(TrialError, match="the first is 'test/0' of gsm8k"):
        check_apart(study(tmp_path / "b", FILLER + worked), [GSM8K], data=file, limit=None)


def test_a_trial_apart_from_the_selection_text_takes_the_best_loops_and_says_whose(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_module, "judge_trial", lambda out: sorted(file.read_bytes() for file in out.rglob("records.jsonl")))
    folder = study(tmp_path / "study", FILLER, *worked_text(0, 4), results=RESULTS)
    out = tmp_path / "out"
    settings = TrialSettings(limit=4, placement=folder, rules=("plain",))
    records = trial(base, out=out, budgets=(4,), settings=settings)
    assert len(records) == 3
    assert json.loads((out / "plan.json").read_text())["loops"] == LOOPS
    assert read_selection(out) == {"study": "study", "mixture_sha256": "ab" * 32}
    StudyWriter(folder, {"model": "tiny", "num_layers": 6, "mixture_sha256": "ab" * 32}).append([result("4:6 x2", 0.5)])
    assert trial(base, out=out, budgets=(4,), settings=settings) == records, (
        "a study that has grown does not change a trial that is under way"
    )
    with pytest.raises(TrialError, match=r"another placement study \(study on text abababababab, now none\); .* give a new --out"):
        trial(base, out=out, loops=LOOPS, budgets=(4,), settings=TrialSettings(limit=4, rules=("plain",)))


def test_loops_that_are_given_or_the_models_own_are_not_replaced_in_silence(tmp_path: Path) -> None:
    from loopwise.models import resolve

    folder = study(tmp_path / "study", FILLER, results=RESULTS)
    for name, loops in (("same", LOOPS), ("other", "2:4 x2")):
        save(insert(tiny_model("llama"), loops), tiny_tokenizer(), tmp_path / name)  # type: ignore[arg-type]
    assert loops_of_study(resolve(tmp_path / "same"), folder, tmp_path / "out")
    with pytest.raises(
        TrialError, match=r"other has the loops 2:4 x2.* of its own, the best of .*study are 1:4 x2 damped beta=0\.25; say with --l"
    ):
        loops_of_study(resolve(tmp_path / "other"), folder, tmp_path / "out")


def test_a_study_that_cannot_choose_is_refused(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unscored = study(tmp_path / "unscored", FILLER, results=RESULTS[:1] + RESULTS[3:])
    unhashed = study(tmp_path / "unhashed", FILLER, results=RESULTS)
    (unhashed / TEXT_HASHES_FILE).unlink()
    for folder, kind, message in (
        (unscored, TrialError, "no loop in it was scored on its whole text"),
        (unhashed, DataError, r"has no text_hashes\.json"),
        (tmp_path / "nothing", StudyError, "holds no study"),
    ):
        with pytest.raises(kind, match=message):
            trial(base, out=tmp_path / "out", settings=TrialSettings(limit=4, placement=folder))
    with pytest.raises(SystemExit):
        main(["trial", str(base), "--placement", str(unhashed), "--limit", "4", "--out", str(tmp_path / "out")])
    error = capsys.readouterr().err
    assert error.startswith("loopwise trial: ") and "has no text_hashes.json" in error and error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_study_of_the_divergence_gives_its_lowest_and_calibrated_loss_goes_before_it(tmp_path: Path) -> None:
    from loopwise.models import resolve

    save(tiny_model("llama"), tiny_tokenizer(), tmp_path / "base")  # type: ignore[arg-type]
    nearest = result("2:4 x2", 3.0, measure="text+kl", values={"loss_nats": 3.0, "kl_nats": 0.1})
    other = result("1:3 x2", 2.0, measure="text+kl", values={"loss_nats": 2.0, "kl_nats": 0.4})
    folder = study(tmp_path / "study", FILLER, results=(result("", 1.0), other, nearest))
    source = resolve(tmp_path / "base")
    assert format_loops(loops_of_study(source, folder, tmp_path / "out")) == "2:4 x2"
    study(folder, FILLER, results=[result("3:5 x2", 9.0)])
    assert format_loops(loops_of_study(source, folder, tmp_path / "out")) == "3:5 x2"


def test_underscores_part_words_and_marks_that_nobody_sees_part_none() -> None:
    question = QUESTION.split(". Each")[0]
    assert found(QUESTION, FILLER + QUESTION.replace(" ", "_") + FILLER)
    assert found(question, f"{FILLER} _{question}._ {FILLER}") and shingle_hashes("a_b c d e f") == shingle_hashes("a b c d e f")
    for mark in "\u00ad\u200d\u2060\ufeff":
        assert found(QUESTION, QUESTION.replace("plum", f"pl{mark}um").replace("take", f"{mark}ta{mark}ke"))


def test_a_study_that_read_no_text_has_no_hashes_and_is_joined_later(tmp_path: Path) -> None:
    for _ in range(2):
        write_text_hashes(tmp_path, hash_documents(()))
        assert read_text_hashes(tmp_path) == TextHashes(documents={}, hashes=frozenset())
    check_apart(study(tmp_path / "study"), [LADDER], data=None, limit=4)
    text = hash_documents(named_documents("web", [QUESTION]))
    write_text_hashes(tmp_path, text)
    assert read_text_hashes(tmp_path) == text
    write_text_hashes(tmp_path, hash_documents(()))
    assert read_text_hashes(tmp_path) == text


def test_hashes_that_do_not_fit_on_the_disk_leave_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = hash_documents(named_documents("web", [QUESTION]))
    write_text_hashes(tmp_path, text)

    def full(file: Path, content: str, encoding: str) -> int:
        with open(file, "w", encoding=encoding) as part:
            part.write(content[:10])
        raise OSError(errno.ENOSPC, "No space left on device", str(file))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        with pytest.raises(OSError, match="No space left on device; the hashes that were there stay, the same command goes on") as caught:
            write_text_hashes(tmp_path, hash_documents(named_documents("more", [FILLER])))
    assert "\n" not in str(caught.value) and read_text_hashes(tmp_path) == text and not list(tmp_path.glob("*.part"))


def test_hashes_join() -> None:
    one, two = TextHashes(documents={"a": "x"}, hashes=frozenset("1")), TextHashes(documents={"b": "y"}, hashes=frozenset("2"))
    assert one.joined(two) == TextHashes(documents={"a": "x", "b": "y"}, hashes=frozenset("12"))
