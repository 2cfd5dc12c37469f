"""Finding and judging answers: the collected traps, every real gold, and texts made to break a grader."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from data import data_dir
from loopwise.tasks import RULES, Grade, TaskError, answers, math_child
from loopwise.tasks.grading import compare, grade_expression, grade_letter, grade_number
from loopwise.tasks.latex import Exact, cleaned, exact_number, without_unit
from loopwise.tasks.math_child import CHILD, MathChild

ENDLESS = "9^{9^{9^{9}}}"


def _rows(path: str) -> list[dict]:
    file = data_dir() / path
    with gzip.open(file, "rt") if file.suffix == ".gz" else open(file, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def _grade(kind: str, gold: str, text: str) -> Grade:
    graders = {"math": grade_expression, "gsm8k": grade_number, "letter": lambda gold, text: grade_letter(gold, text, "ABCD")}
    return graders[kind](gold, text)


# Real answers


def test_every_collected_case_is_right_and_names_its_rule():
    cases = _rows("answer_cases.jsonl")
    assert len(cases) == 36
    for case in cases:
        grade = _grade(case["kind"], case["gold"], case["input"])
        assert grade.correct == bool(case["expect"]), (case, grade)
        assert grade.rule in RULES
        if case["expect"] is None:
            assert grade.answer is None and grade.rule == "no-answer"


def test_gsm8k_solutions_of_four_models_are_judged_as_their_publishers_did():
    rows = _rows("reasoning/gsm8k_model_solutions.jsonl.gz")
    models = ("6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification")
    seen: Counter[bool] = Counter()
    for row in rows:
        gold = row["ground_truth"].rpartition("\nA: ")[2]
        for model in models:
            grade = grade_number(gold, row[model]["solution"])
            assert grade.correct == row[model]["is_correct"], (gold, row[model], grade)
            seen[grade.correct] += 1
    assert sum(seen.values()) == 5276 and min(seen.values()) > 1000


def test_every_math500_gold_solution_is_right_and_a_changed_number_is_wrong():
    rows = _rows("math500/test.jsonl")
    assert len(rows) == 500
    num_changed = 0
    for row in rows:
        gold = row["answer"]
        assert grade_expression(gold, row["solution"]).correct
        assert grade_expression(gold, f"So it is \\boxed{{{gold}}}.").correct
        number = exact_number(without_unit(cleaned(gold)))
        if number is not None:
            num_changed += 1
            changed = grade_expression(gold, f"\\boxed{{{number.value + 1}}}")
            assert not changed.correct and changed.rule == "number"
    assert num_changed > 380


def test_math_golds_of_different_problems_are_not_taken_for_each_other():
    golds = [row["answer"] for row in _rows("math500/test.jsonl")]
    expressions = [gold for gold in golds if exact_number(without_unit(cleaned(gold))) is None][:40]
    for gold, other in pairwise(expressions):
        assert not compare(gold, other)[0], (gold, other)


# Extraction


@pytest.mark.parametrize(
    ("text", "box"),
    [
        ("\\boxed{1} and \\boxed{2}", "2"),
        ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\boxed{\\{1, 2\\}}", "\\{1, 2\\}"),
        ("\\boxed{\\boxed{4}}", "4"),
        ("\\boxed{ \\fbox{4} }", "4"),
        ("{ an open brace \\boxed{3}", "3"),
        ("a stray brace } and \\boxed{3}", "3"),
        ("\\boxed{5}, cut off: \\boxed{6", "5"),
        ("\\boxed{5}, as asked within \\boxed{}", "5"),
        ("nothing in \\boxed{ }", None),
        ("\\boxed", None),
        ("\\boxed 5", None),
        ("\\boxed{5", None),
        ("\\boxedx{5}", None),
        ("", None),
    ],
)
def test_the_last_balanced_box(text: str, box: str | None):
    assert answers.last_box(text) == box


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("no thinking", "no thinking"),
        ("<think>a</think>b", "b"),
        ("opened in the prompt</think>b", "b"),
        ("<think>a</think>b<think>c</think>d", "d"),
        ("<think>a", None),
        ("<think>a</think>b<think>c", None),
        ("[THINK]a[/THINK]b", "b"),
        ("[THINK]a", None),
    ],
)
def test_the_part_after_the_thinking(text: str, part: str | None):
    assert answers.answer_part(text) == part


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("16 - 3 = 13", "13"),
        ("16-3", "3"),
        ("it is -3.", "-3"),
        ("(-4)", "-4"),
        ("costs $1,234.50.", "$1,234.50"),
        ("-$5 left", "-$5"),
        ("1,450,000 people", "1,450,000"),
        ("10{,}000 people", "10,000"),
        ("10\\,000 people", "10,000"),
        ("5, 6, and 7,", "7"),
        ("about .5", ".5"),
        ("20%", "20"),
        ("in 3 hours, H2O boils", "3"),
        ("Answer: 7", "7"),
        ("none", None),
    ],
)
def test_the_last_number(text: str, number: str | None):
    assert answers.last_number(text) == number


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("B", "B"),
        ("(B)", "B"),
        ("B. Planets turn", "B"),
        ("**C**", "C"),
        ("The answer is **C**.", "C"),
        ("The correct option is\nC", "C"),
        ("Options A and B are wrong, so the answer is D", "D"),
        ("I choose option C.", "C"),
        ("\\boxed{\\text{A}}", "A"),
        ("\\boxed{D) all of them}", "D"),
        ("<think>surely A</think>The answer is B.", "B"),
        ("Answer: A car moves", None),
        ("The answer is A because it moves", "A"),
        ("Answer: E", None),
        ("A stone falls", None),
        ("<think>The answer is B", None),
        ("", None),
    ],
)
def test_the_option_letter(text: str, letter: str | None):
    assert grade_letter("A", text, "ABCD").answer == letter


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Final Answer: **73**", "73"),
        ("The final answer is $5$. I hope it is correct.", "5"),
        ("**Final answer:** \\(x+1\\)", "x+1"),
        ("final answer: 3.5 metres. Done", "3.5 metres"),
        ("Final answer: 1\nFinal answer: 2", "2"),
        ("Final answer: \\boxed{4", None),
        ("My answer is 5", None),
        ("Final answer:", None),
    ],
)
def test_an_explicit_final_answer(text: str, answer: str | None):
    assert answers.final_answer(text) == answer


# Comparison


@pytest.mark.parametrize(
    ("gold", "answer", "correct", "rule"),
    [
        ("90^\\circ", "90", True, "number"),
        ("5.4 \\text{ cents}", "5.4", True, "normalised"),
        ("864 \\mbox{ inches}^2", "864\\text{ square inches}", True, "normalised"),
        ("\\$32,\\!348", "32348", True, "number"),
        ("11,\\! 111,\\! 111,\\! 100", "11111111100", True, "normalised"),
        ("3, 500", "3500", False, "math-verify"),
        ("1\\frac{4}{5}", "1.8", True, "number"),
        ("137 \\frac{1}{2}", "137 1/2", True, "number"),
        (".0000672", "6.72 \\times 10^{-5}", True, "number"),
        ("-\\frac{35}{9}", "\\frac{-35}{9}", True, "number"),
        ("\\frac43", "1.333333", True, "number"),
        ("\\frac43", "1.33", False, "number"),
        ("\\frac{1}{2}", "50\\%", True, "number"),
        ("50\\%", "0.5", True, "number"),
        ("50\\%", "5", False, "number"),
        ("2", "2.0000001", False, "number"),
        ("5", "5 million", False, "mismatch"),
        ("52_8", "52_{8}", True, "normalised"),
        ("52_8", "52_7", False, "number"),
        ("52_8", "42", False, "number"),
        ("x=5", "5", True, "normalised"),
        ("5", "x = 5", True, "normalised"),
        ("0", "3x+4y=0", False, "mismatch"),
        ("2k", "2", False, "mismatch"),
        ("\\text{(C)}", "C", True, "normalised"),
        ("\\text{even}", "Even", True, "normalised"),
        ("abc", "cab", False, "mismatch"),
        ("12:30", "6:15", False, "mismatch"),
        ("\\{1,2\\}", "(1,2)", False, "mismatch"),
        ("(1,2)", "1,2", False, "mismatch"),
        ("\\{1,2\\}", "2, 1", True, "math-verify"),
        ("1,-2", "x=-2 \\text{ or } x=1", True, "math-verify"),
        ("(3,4]", "3 < x \\le 4", True, "math-verify"),
        ("3 \\pm 2\\sqrt{2}", "3 + 2\\sqrt{2}", False, "math-verify"),
        ("3 \\pm 2\\sqrt{2}", "3 + 2\\sqrt{2}, 3 - 2\\sqrt{2}", True, "math-verify"),
        ("11\\sqrt2", "\\sqrt{242}", True, "math-verify"),
        ("p - q", "-q + p", True, "math-verify"),
        ("p - q", "q - p", False, "math-verify"),
        ("4", "2 + 2 = 4", True, "math-verify"),
        ("\\begin{pmatrix} -1/3 \\\\ 2/3 \\end{pmatrix}", "\\begin{pmatrix} -\\frac13 \\\\ \\frac23 \\end{pmatrix}", True, "math-verify"),
    ],
)
def test_equal_or_not_and_by_which_rule(gold: str, answer: str, correct: bool, rule: str):
    assert compare(gold, answer) == (correct, rule)


@pytest.mark.parametrize(
    ("gold", "text", "correct", "rule"),
    [
        ("18", "\\boxed{18\\text{ dollars}}", True, "normalised"),
        ("18", "\\boxed{18 eggs a day}", True, "normalised"),
        ("18", "\\boxed{x = 18}", True, "normalised"),
        ("18", "\\boxed{\\$18.00}", True, "number"),
        ("18", "\\boxed{\\frac{36}{2}}", True, "number"),
        ("16", "\\boxed{\\sqrt{16}}", False, "math-verify"),
        ("18", "\\boxed{17}, not 18", False, "number"),
        ("18", "First 17, no: 18", True, "last-number"),
        ("18", "First 18, no: 17", False, "last-number"),
        ("18", "<think>18</think> I cannot say.", False, "no-answer"),
        ("18", "eighteen", False, "no-answer"),
    ],
)
def test_number_tasks(gold: str, text: str, correct: bool, rule: str):
    grade = grade_number(gold, text)
    assert (grade.correct, grade.rule) == (correct, rule)


@pytest.mark.parametrize(
    "box",
    ["not 5", "The total is not 5", "never 5", "more than 5", "It is less than 5", "no more than 5", "half of 5", "twice 5",
     "not the 5", "not equal to 5", "5 not", "5 is wrong", "5 isn't right", "5 squared", "5 cubed", "5 minus one",
     "5 and a half", "5 hours and a half", "\\text{not } 5", "5\\text{ is not it}", "\\ne 5", "\\neq 5",
     "\\not= 5", "x \\not= 5", "≠ 5", "> 5", "\\le 5", "x \\ne 5"],
)  # fmt: skip
def test_a_number_that_is_denied_or_changed_is_not_that_number(box: str):
    """math-verify agrees on all that it reads but a lone "not equal", which it takes for the number."""
    for grader in (grade_number, grade_expression):
        grade = grader("5", f"So it is \\boxed{{{box}}}.")
        assert (grade.correct, grade.rule) == (False, "mismatch"), grade


@pytest.mark.parametrize(
    "box",
    ["5", "5 apples", "the answer is 5", "Answer: 5", "Half of that is 5", "The one that is not blue is 5", "5 with no remainder",
     "about 5", "at least 5", "5 more", "5 times", "5 less", "5 cents not counting tax", "x = 5"],
)  # fmt: skip
def test_other_words_around_a_number_leave_it(box: str):
    assert grade_number("5", f"\\boxed{{{box}}}").correct


@pytest.mark.parametrize(
    ("gold", "box"),
    [("25", "25 squared cm"), ("25", "25 \\text{ squared meters}"), ("25", "25\\text{ squared units}"), ("25", "25 cm squared"),
     ("8", "8 cubed inches"), ("16", "16 \\text{ squared inches}"), ("8", "8 wrong answers"), ("8", "8 incorrect"),
     ("8", "8 false positives"), ("8", "8 were not sold"), ("8", "8 never returned"), ("8", "8 minus signs"),
     ("4", "4 \\text{ false statements}"), ("4", "4 \\text{ were wrong}"), ("5", "5 \\text{ (not 6)}"), ("5", "5 \\text{ is not prime}")],
)  # fmt: skip
def test_units_and_things_counted_leave_the_number(gold: str, box: str):
    for grader in (grade_number, grade_expression):
        assert grader(gold, f"\\boxed{{{box}}}").correct


@pytest.mark.parametrize(
    ("gold", "box"),
    [("8", "8 people didn't"), ("12", "number not sold 12"), ("0", "no apples 0"), ("12", "No 12"), ("20", "older than Tim by 20 years"),
     ("4", "except Sunday 4"), ("12", "second half 12"), ("5", "5 apples and half a pear")],
)  # fmt: skip
def test_words_that_are_not_beside_a_number_leave_it(gold: str, box: str):
    assert grade_number(gold, f"\\boxed{{{box}}}").correct


@pytest.mark.parametrize("box", ["negative 5", "minus 5", "\\text{negative } 5", "x = \\text{minus } 5", "-5"])
def test_a_sign_in_words_is_a_sign(box: str):
    for grader in (grade_number, grade_expression):
        assert grader("-5", f"\\boxed{{{box}}}").correct
        assert not grader("5", f"\\boxed{{{box}}}").correct


def test_a_sign_in_words_behind_is_counts_too():
    assert grade_number("-5", "\\boxed{The answer is negative 5}").correct and grade_number("-5", "\\boxed{Total: minus 5}").correct
    assert not grade_number("5", "\\boxed{The answer is negative 5}").correct
    assert not grade_number("-5", "\\boxed{8 minus 5}").correct


@pytest.mark.parametrize(
    ("gold", "answer", "correct"),
    [("5", "\\left< 5 \\right>", True), ("0.5", "> 0.5", False), ("5", "x \\ne 5", False), ("5", "5 < x > 3", False),
     ("x \\neq 3", "x \\not= 3", True), ("x \\neq 3", "x \\not=3", True), ("x = 3", "x \\not= 3", False)],
)  # fmt: skip
def test_a_relation_is_no_number_and_brackets_are_no_relation(gold: str, answer: str, correct: bool):
    assert compare(gold, answer)[0] is correct


def test_equal_numbers_are_shown_alike_for_voting():
    texts = ("\\boxed{\\$1,200}", "\\boxed{1200.0}", "So 1200.", "\\boxed{x = 1200\\text{ cm}}")
    assert {grade_number("7", text).answer for text in texts} == {"1200"}


def test_exact_numbers():
    known = exact_number("-12.50%")
    assert isinstance(known, Exact) and known.percent and known.decimals == 2 and known.value == -12.5
    for text in ("", "-", ".", "1.2.3", "--5", "1/0", "\\frac{1}{0}", "x", "1,23", "9" * 61, "1e5", "\\pm 3"):
        assert exact_number(text) is None, text


# Texts made to break a grader


MEGABYTE = 10**6


@pytest.mark.parametrize(
    "text",
    [
        "{" * MEGABYTE,
        "\\boxed{" * (MEGABYTE // 7),
        "\\boxed{" * (MEGABYTE // 14) + "7" + "}" * (MEGABYTE // 14),
        "\\boxed{" + "5" * MEGABYTE + "}",
        "111," * (MEGABYTE // 4) + "1111",
        "9" * MEGABYTE,
        "answer " * (MEGABYTE // 7),
        "final answer: $" + "x" * MEGABYTE,
        "\\" * MEGABYTE,
        " " * MEGABYTE,
    ],
    ids=lambda text: repr(text[:16]),
)
def test_a_megabyte_of_anything_is_graded_in_passing(text: str):
    started = time.process_time()
    for kind in ("math", "gsm8k", "letter"):
        grade = _grade(kind, "5", text)
        assert not grade.correct and (grade.answer is None or len(grade.answer) < 500)
    assert time.process_time() - started < 3


@pytest.mark.parametrize("answer", ["\\sqrt{" * 30 + "2" + "}" * 30, "\x00\n\"'", "\ud800", "🙂", "\\frac{}{}", "}{"])
def test_strange_answers_are_wrong_and_nothing_worse(answer: str):
    assert not compare("x^2 + 7", answer)[0]


# The child process


@pytest.fixture
def child() -> Iterator[MathChild]:
    child = MathChild(limit_seconds=1.0)
    yield child
    child.close()


def _alive(pid: int) -> bool:
    """A zombie that nobody reaped yet is dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _gone(pid: int, within_seconds: float) -> bool:
    deadline = time.monotonic() + within_seconds
    while _alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not _alive(pid)


def test_an_endless_calculation_is_killed_and_the_next_pair_is_served(child: MathChild):
    handler = signal.getsignal(signal.SIGALRM)
    assert child.equal("x+1", "1+x") is True
    first = child._process.pid
    assert child.equal("5", ENDLESS) is None
    assert not _alive(first)
    assert child.equal("x+1", "x+2") is False
    assert signal.getsignal(signal.SIGALRM) is handler and signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_the_grade_of_an_endless_answer(monkeypatch: pytest.MonkeyPatch, child: MathChild):
    monkeypatch.setattr("loopwise.tasks.grading.CHILD", child)
    grade = grade_expression("387420489", f"\\boxed{{{ENDLESS}}}")
    assert grade == Grade(correct=False, answer=ENDLESS, rule="killed")


def test_a_child_killed_from_outside_is_replaced():
    assert CHILD.equal("x+1", "1+x") is True
    os.kill(CHILD._process.pid, signal.SIGKILL)
    assert CHILD.equal("x+1", "1+x") is True


def test_the_parent_kills_a_child_that_does_not_answer(child: MathChild, monkeypatch: pytest.MonkeyPatch):
    assert child.equal("x+1", "1+x") is True
    os.kill(child._process.pid, signal.SIGSTOP)
    monkeypatch.setattr(math_child, "WAITING", 0.3)
    assert child.equal("x+1", "1+x") is None


def test_many_threads_share_one_child():
    wrong: list[int] = []

    def ask(number: int) -> None:
        for k in range(5):
            if CHILD.equal(f"x+{number}", f"{number}+x") is not True or CHILD.equal(f"x+{number}", f"x+{number + k + 1}") is not False:
                wrong.append(number)

    CHILD.equal("x", "x")
    pid = CHILD._process.pid
    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and CHILD._process.pid == pid


def _compare_in_fork(answers_: multiprocessing.Queue) -> None:
    answers_.put((compare("p - q", "-q + p"), CHILD._process.pid))


def test_a_forked_process_starts_its_own_child():
    assert compare("p - q", "-q + p") == (True, "math-verify")
    pid = CHILD._process.pid
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    fork = context.Process(target=_compare_in_fork, args=(queue,))
    fork.start()
    decided, pid_in_fork = queue.get(timeout=120)
    assert decided == (True, "math-verify") and pid_in_fork != pid
    fork.join()
    assert _gone(pid_in_fork, within_seconds=60), "it ends when its pipe closes"
    assert compare("p - q", "-q + p") == (True, "math-verify") and CHILD._process.pid == pid


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks processes up in /proc")
@pytest.mark.parametrize("pair", ["'x+1', '1+x'", f"'5', '{ENDLESS}'"], ids=["idle", "busy"])
def test_no_child_outlives_a_killed_parent(pair: str):
    script = (
        "import threading, time\n"
        "from loopwise.tasks.math_child import MathChild\n"
        "child = MathChild(limit_seconds=1.0)\n"
        "child.equal('x', '2 x')\n"
        "print(child._process.pid, flush=True)\n"
        f"threading.Thread(target=child.equal, args=({pair}), daemon=True).start()\n"
        "time.sleep(60)\n"
    )
    source = str(Path(math_child.__file__).parents[2])
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": source})
    pid = int(parent.stdout.readline())
    time.sleep(0.3)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert _gone(pid, within_seconds=60)


def test_another_version_of_math_verify_is_refused(child: MathChild, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(math_child, "MATH_VERIFY_VERSION", "0.8.0")
    with pytest.raises(TaskError, match=r"needs math-verify 0\.8\.0, found 0\.9\.0; pip install math-verify==0\.8\.0"):
        child.equal("1", "x")


def test_math_verify_and_sympy_stay_out_of_this_process():
    code = (
        "import sys; from loopwise.tasks.grading import compare; assert compare('p-q', '-q+p')[0]\n"
        "print(sorted({'sympy', 'math_verify', 'torch'} & set(sys.modules)))"
    )
    source = str(Path(math_child.__file__).parents[2])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": source}, check=True)
    assert done.stdout.strip() == "[]"
