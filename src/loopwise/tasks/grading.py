"""Who is right. In this order: cut the thinking, find the answer, compare normal forms, then exact numbers, and only then ask math-verify.

Each grade names the rule that decided. math-verify alone would hold anagrams, a pair and a set, 2m and 2, or numbers of different
bases equal; such pairs never reach it.
"""

from __future__ import annotations

import re

from . import answers
from .latex import changes_number, cleaned, exact_number, normalised, same_number, unassigned, without_unit
from .math_child import CHILD
from .values import Grade

RULES = {
    "no-answer": "the text holds no answer, or its thinking never ended",
    "normalised": "the answer and the gold are one text in normal form",
    "number": "both are exact numbers, compared as fractions",
    "last-number": "there was no box; the last number of the text was compared as a fraction",
    "mismatch": "the two are different kinds of things (a word, a pair, a set, a variable, a relation), so they are not equal",
    "math-verify": "math-verify compared the two expressions",
    "killed": "math-verify did not come to an end, or the answer is too long to ask it; counted as wrong",
    "letter": "an option's letter was compared",
    "text": "the answer was compared as text, without regard to case, blanks and commas",
    "calls": "the answer was read as function calls and compared with the right ones, or with none",
}
"""Every rule a grade can name."""

LONGEST_ANSWER = 400
"""Characters. Longer answers are compared as text only."""

_NUMBER_AMONG_WORDS = re.compile(
    r"(?:[A-Za-z][A-Za-z ]*(?:is|=|:)?)?\s*(" + answers.NUMBER.pattern + r")\s*%?(?:\s*[A-Za-z][A-Za-z ,.'/-]*)?"
)

_RELATION = re.compile(r"^(?!<[^<>]*>$).*(?:[<>]|\\(?:ne|le|ge|lt|gt|not|neg|lnot)(?![A-Za-z]))")
"""Other than equality, and not what stands in angle brackets: no number is one. math-verify reads "\\ne 5" as 5."""


def grade_expression(gold: str, text: str) -> Grade:
    """For answers that may be any mathematical expression: the last box, else what an explicit "final answer" names."""
    part = answers.answer_part(text)
    answer = None if part is None else answers.last_box(part) or answers.final_answer(part)
    if answer is None:
        return Grade(correct=False, answer=None, rule="no-answer")
    correct, rule = compare(gold, answer)
    return Grade(correct=correct, answer=shown(answer), rule=rule)


def grade_number(gold: str, text: str) -> Grade:
    """For answers that are numbers: the last box, else the last number (no-free-loop, A.4)."""
    part = answers.answer_part(text)
    box = None if part is None else answers.last_box(part)
    if box is not None:
        words = _NUMBER_AMONG_WORDS.fullmatch(cleaned(box)) if len(box) <= LONGEST_ANSWER else None
        answer = words[1] if words and not changes_number(words.string[: words.start(1)], words.string[words.end(1) :]) else box
        correct, rule = compare(gold, answer)
        return Grade(correct=correct, answer=shown(answer), rule=rule)
    number = None if part is None else answers.last_number(part)
    found = None if number is None else exact_number(cleaned(number))
    wanted = exact_number(cleaned(gold))
    if number is None or found is None or wanted is None:
        return Grade(correct=False, answer=number and shown(number), rule="no-answer" if number is None else "mismatch")
    return Grade(correct=same_number(wanted, found), answer=shown(number), rule="last-number")


def grade_letter(gold: str, text: str, letters: str) -> Grade:
    """For option letters in a text; choosing by logits needs no grading."""
    part = answers.answer_part(text)
    letter = None if part is None else answers.option_letter(part, letters)
    return Grade(correct=letter == gold and letter is not None, answer=letter, rule="no-answer" if letter is None else "letter")


def shown(answer: str) -> str:
    """One text for equal answers as far as reading goes: a plain number for a number, else the normal form, cut when long."""
    if len(answer) > LONGEST_ANSWER:
        return answer[:LONGEST_ANSWER] + "..."
    plain = unassigned(without_unit(cleaned(answer)))
    number = exact_number(plain)
    return str(number.value) if number and not number.percent and not number.base else normalised(plain)


def compare(gold: str, answer: str) -> tuple[bool, str]:
    """Whether an extracted answer equals the gold, and the rule that decided."""
    if len(answer) > LONGEST_ANSWER or len(gold) > LONGEST_ANSWER:
        same = normalised(cleaned(gold)) == normalised(cleaned(answer)) if len(answer) <= 2 * len(gold) else False
        return same, "normalised" if same else "killed"
    gold, answer = cleaned(gold), cleaned(answer)
    if normalised(gold) == normalised(answer):
        return True, "normalised"
    gold, answer = _same_form(without_unit(gold), without_unit(answer))
    if normalised(gold) == normalised(answer):
        return True, "normalised"
    exact_gold, exact_answer = exact_number(gold), exact_number(answer)
    if exact_gold and exact_answer:
        return same_number(exact_gold, exact_answer), "number"
    if any(exact and (_has_variables(other) or _RELATION.search(other)) for exact, other in ((exact_gold, answer), (exact_answer, gold))):
        return False, "mismatch"
    if _is_words(gold) or _is_words(answer):
        same = _letters(gold) == _letters(answer)
        return same, "normalised" if same else "mismatch"
    if _of_different_kinds(gold, answer):
        return False, "mismatch"
    same_expression = CHILD.equal(*(text.replace("$", "").replace("%", "\\%") for text in (gold, answer)))
    return bool(same_expression), "killed" if same_expression is None else "math-verify"


def _same_form(gold: str, answer: str) -> tuple[str, str]:
    """Unwrap ``x =`` or ``x \\in`` where only one side says it."""
    plain_gold, plain_answer = unassigned(gold), unassigned(answer)
    if (plain_gold == gold) != (plain_answer == answer):
        return plain_gold, plain_answer
    return gold, answer


def _has_variables(text: str) -> bool:
    """Whether bare letters stand in it that are not the constants e and i."""
    return bool(re.search(r"[A-DF-HJ-Za-df-hj-z]|[A-Za-z]{2}", re.sub(r"\\[A-Za-z]+", " ", normalised(text))))


def _of_different_kinds(gold: str, answer: str) -> bool:
    """Further pairs on which math-verify is known to be wrong: times of day, tuples against sets."""
    if any(re.fullmatch(r"\d{1,2}:\d{2}", text) for text in (gold, answer)):
        return True
    shapes = {_shape(normalised(text)) for text in (gold, answer)}
    return "tuple" in shapes and bool(shapes & {"set", "list"})


def _is_words(text: str) -> bool:
    wrapped = re.fullmatch(r"\\(?:text|textbf|mathrm|mbox)\s*\{[A-Za-z][A-Za-z .]+\}", text)
    return bool(wrapped or re.fullmatch(r"[A-Za-z]{3}[A-Za-z .]*", text))


def _letters(text: str) -> str:
    return re.sub(r"[^a-z]", "", normalised(text).casefold())


def _shape(text: str) -> str:
    """``tuple`` for (a, b) and intervals, ``set`` for {a, b}, ``list`` for bare a, b, else ``single``."""
    depth, commas, closes_early = 0, set(), False
    for position, (before, symbol) in enumerate(zip(" " + text, text, strict=False)):
        if symbol in "([{":
            depth += 1
        elif symbol in ")]}":
            depth -= 1
            closes_early |= depth == 0 and position < len(text) - 1
        elif symbol == "," and before != "\\":
            commas.add(depth)
    if text[:1] in "([" and text[-1:] in ")]" and 1 in commas and not closes_early:
        return "tuple"
    if text.startswith("\\{") and text.endswith("\\}") and 1 in commas and not closes_early:
        return "set"
    return "list" if 0 in commas else "single"
