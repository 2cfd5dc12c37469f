"""Finding the answer in a model's text: behind the thinking, in the last box, the last number, or an option's letter.

All of it runs in one pass over the text, so that a megabyte of braces costs no more than a megabyte of prose.
"""

from __future__ import annotations

import re
from typing import NamedTuple

THINKING_TAGS = (("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<seed:think>", "</seed:think>"))
"""Opening and closing tags of thinking blocks. A new family's tags are added here."""

_BOX = re.compile(r"\\(?:boxed|fbox)\s{0,8}\{")
_BOX_TOKENS = re.compile(r"\\(?:boxed|fbox)\s{0,8}\{|\\.|[{}]", re.DOTALL)
_SOMETHING = re.compile(r"\S")

NUMBER = re.compile(
    r"(?:(?<![\w)\]}])[-−])?(?:[$€£]\s?[-−]?)?"
    r"(?:(?<![\w.])\d{1,3}(?:,\d{3}){1,8}(?!\d)|(?<![A-Za-z_\d])\d+)(?:\.\d+)?|(?<![\w.])[-−]?\.\d+"
)
"""A number in running text: a sign where it is no subtraction, thousands separators, no full stop behind it."""

_GLUED_THOUSANDS = re.compile(r"(?<=\d)(?:\{,\}|\\[,;! ]|,\\!)(?=\d{3}(?!\d))")
_FINAL_ANSWER = re.compile(r"final\s{1,4}answer[\s*_]{0,8}(?:is\b|:)[\s*_:]{0,8}", re.IGNORECASE)
_MATH = re.compile(r"\$([^$]+)\$|\\\((.+?)\\\)")
_LETTER_MARK = re.compile(r"\b(?:answer|antwort|option|choice|letter)\b[ \t*_]{0,8}(?:is\b|:|=)?[ \t*_]{0,8}", re.IGNORECASE)
_MARKED_LETTER = re.compile(r"[(\[*_{]{0,4}([A-Z])(?![A-Za-z'’])")
_BARE_LETTER = re.compile(r"\s*[(\[*_]{0,4}([A-Z])(?:[)\]*_.:,]{1,4}(?=\s|$)|\s*$)")
_WORD_AFTER_ARTICLE = re.compile(r"\s+(?!because\b|since\b|as\b|is\b|and\b|or\b|for\b|due\b|which\b)[a-z]")


def answer_part(text: str) -> str | None:
    """What stands after the thinking; None when the last thinking block never ends, for then nothing was answered.

    A closing tag without an opening one counts too: many chat templates open the thinking inside the prompt.
    """
    for opening, closing in THINKING_TAGS:
        _, found, after = text.rpartition(closing)
        text = after if found else text
        if opening in text:
            return None
    return text


def last_box(text: str) -> str | None:
    """The content of the last ``\\boxed{...}`` or ``\\fbox{...}`` whose braces balance and that holds something.

    Boxes inside a box belong to it, and a box that holds nothing but a box is that box. ``\\boxed`` without braces is no answer,
    nor is one that the budget cut off.
    """
    first = _BOX.search(text)
    if first is None:
        return None
    boxes: list[_Box] = []
    open_braces: list[re.Match[str]] = []
    for token in _BOX_TOKENS.finditer(text, first.start()):
        symbol = token.group()
        if symbol == "{" or len(symbol) > 2:
            open_braces.append(token)
        elif symbol == "}" and open_braces:
            opening = open_braces.pop()
            if len(opening.group()) > 1 and _SOMETHING.search(text, opening.end(), token.start()):
                _add_box(boxes, _Box(opening.start(), opening.end(), token.start(), token.end()), text)
    return text[boxes[-1].start : boxes[-1].stop].strip() if boxes else None


class _Box(NamedTuple):
    """Where a box begins and ends, and where its content does."""

    begin: int
    start: int
    stop: int
    end: int


def _add_box(boxes: list[_Box], box: _Box, text: str) -> None:
    """Put a box in the place of the boxes inside it; a box around nothing but a box takes that one's content."""
    inner = None
    while boxes and boxes[-1].begin > box.begin:
        inner = boxes.pop()
    if inner and not _SOMETHING.search(text, box.start, inner.begin) and not _SOMETHING.search(text, inner.end, box.stop):
        box = box._replace(start=inner.start, stop=inner.stop)
    boxes.append(box)


def last_number(text: str) -> str | None:
    """The last number of a text as it stands there, thousands that LaTeX glued together joined."""
    found = None
    for found in NUMBER.finditer(_GLUED_THOUSANDS.sub(",", text)):  # noqa: B007 - the last match is wanted
        pass
    return found.group() if found else None


def final_answer(text: str) -> str | None:
    """What follows the last "Final answer:" or "the final answer is", up to the end of its line or sentence, without markup.

    A box that was opened there and never closed is a cut answer, hence none.
    """
    mark = None
    for mark in _FINAL_ANSWER.finditer(text):  # noqa: B007 - the last match is wanted
        pass
    if mark is None:
        return None
    line = text[mark.end() :].partition("\n")[0]
    if _BOX.search(line):
        return None
    if formula := _MATH.match(line.lstrip("*_ ")):
        return (formula[1] or formula[2]).strip()
    return re.split(r"[.;!?](?:\s|$)", line, maxsplit=1)[0].strip(" \t*_`") or None


def option_letter(text: str, letters: str) -> str | None:
    """The option that a text settles on; None when it names none.

    In this order: a boxed letter, the last capital letter straight after "answer", "option" or "choice" on one line, a last line
    or a whole text that is nothing but a letter or opens with one as a list does. An "A" or "I" that is a word of its sentence is none.
    """
    box = last_box(text)
    if box is not None:
        boxed = _BARE_LETTER.match(re.sub(r"\\(?:text|textbf|mathrm|mathbf)\s*|[{}]", "", box))
        if boxed and boxed[1] in letters:
            return boxed[1]
    for mark in reversed(list(_LETTER_MARK.finditer(text))):
        letter = _letter_at(text, mark.end(), letters)
        if letter:
            return letter
    lines = [line for line in text.splitlines() if line.strip()]
    for line in (lines[-1], lines[0]) if lines else ():
        bare_letter = _BARE_LETTER.match(line)
        if bare_letter and bare_letter[1] in letters:
            return bare_letter[1]
    return None


def _letter_at(text: str, position: int, letters: str) -> str | None:
    found = _MARKED_LETTER.match(text, position)
    if not found or found[1] not in letters:
        return None
    article = found[1] in "AI" and found.end() - found.start() == 1 and _WORD_AFTER_ARTICLE.match(text, found.end())
    return None if article else found[1]
