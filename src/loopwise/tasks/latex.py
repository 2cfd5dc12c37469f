"""LaTeX answers in one normal form, and the exact numbers that some of them are. No evaluation: text in, text or fraction out."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

LONGEST_NUMBER = 60
"""Longer digit strings are no numbers here: nobody's answer, and slow to read."""

ROUNDED_DECIMALS = 6
"""math-verify's own rounding."""

_UNICODE = str.maketrans(
    {"−": "-", "–": "-", "×": r"\times ", "·": r"\cdot ", "÷": "/", "π": r"\pi ", "∞": r"\infty ", "√": r"\sqrt ", "°": r"^\circ ",
     "±": r"\pm ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "∈": r"\in ", "∪": r"\cup ", "\u00a0": " ", "\u2009": " ", "\u202f": " "}
)  # fmt: skip
_SIGN_IN_WORDS = re.compile(
    r"(?:^|(?<=\bis )|(?<=[=:] )|(?<=[=:]))(?:\\text\s*\{\s*(?:negative|minus)\s*\}|(?:negative|minus)\b)\s*(?=[\d.\\$])", re.IGNORECASE
)
_SYNONYMS = (
    (re.compile(r"\\[dtc]frac(?![A-Za-z])"), r"\\frac"),
    (re.compile(r"\\leq(?![A-Za-z])|\\leqslant(?![A-Za-z])"), r"\\le"),
    (re.compile(r"\\geq(?![A-Za-z])|\\geqslant(?![A-Za-z])"), r"\\ge"),
    (re.compile(r"\\neq(?![A-Za-z])"), r"\\ne"),
    (re.compile(r"\\not\s*=\s*"), r"\\ne "),
    (_SIGN_IN_WORDS, "-"),
    (re.compile(r"\\lbrace(?![A-Za-z])"), r"\\{"),
    (re.compile(r"\\rbrace(?![A-Za-z])"), r"\\}"),
    (re.compile(r"\\(?:left|right|big|Big|bigg|Bigg|bigl|bigr|Bigl|Bigr|displaystyle|textstyle|limits)(?![A-Za-z])"), ""),
    (re.compile(r"(?<=\d),\\!\s*(?=\d{3}(?!\d))"), ""),
    (re.compile(r"(?<=\d)(?:\{,\}|\\[,;:! ]|~)\s*(?=\d{3}(?!\d))"), ""),
    (re.compile(r"(?<!\\)\\!"), ""),
    (re.compile(r"(?<!\\)\\[,;:>\s]|~|\\q?quad(?![A-Za-z])"), " "),
    (re.compile(r"(?<!\\)\\([$%])"), r"\1"),
    (re.compile(r"\^\s*\{?\s*\\(?:circ|degree)\s*\}?|\\(?:degree|textdegree)(?![A-Za-z])"), r"^{\\circ}"),
    (re.compile(r"(?<![\\\w])\+(?=\\infty)"), ""),
)  # fmt: skip
_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|textnormal|mathrm|mathbf|mathit|mbox|operatorname)\s*\{([^{}]*)\}")
_TRAILING_TEXT = re.compile(r"(?<=[\w})$%])\s*\\(?:text|textrm|textnormal|mathrm|mbox)\s*\{\s*([^{}]*?)\s*\}(?:\s*\^\s*\{?\s*[23]\s*\}?)?$")
_TRAILING_WORDS = re.compile(r"(?<=[\d}%])\s+((?:[A-Za-z]{3,}|cm|mm|km|kg|ft|in|mi|lb|oz|ml|hr)(?:\s+[A-Za-z]+)*)$")
_MAGNITUDES = ("hundred", "thousand", "million", "billion", "trillion", "dozen")
_CHANGES_WHAT_FOLLOWS = re.compile(
    r"\b(?:not|never|neither|nor|cannot|except|than|twice|minus|negative|half\s+of)(?:\s+(?:be|equals?|to|the|an?))*\s*$", re.IGNORECASE
)
_CHANGES_WHAT_PRECEDES = re.compile(
    r"\s*(?:(?:not|never|squared|cubed)$|minus\b(?!\s+signs?\b)|(?:is|was)\s+(?:not|wrong|incorrect|false)$"
    r"|(?:(?:is|was)\s+not|(?:is|was)n['’]t)\s+(?:it|right|correct|true|the\s+answer)$|and\s+(?:an?\s+|one\s+)?half\b"
    r"|.*\band\s+(?:an?\s+|one\s+)?half$)",
    re.IGNORECASE,
)
_ASSIGNED = re.compile(r"^(?![^=]*\\not(?![A-Za-z]))[A-Za-z\\|][\w\\(){}|' ]*?\s*(?:=|\\in(?![A-Za-z]))\s*(?!.*=)")


def cleaned(answer: str) -> str:
    """An answer without delimiters, spacing commands, sizes and synonyms; what it says is untouched."""
    text = answer.translate(_UNICODE).strip().strip("`").strip()
    for opening, closing in (("**", "**"), ("\\(", "\\)"), ("\\[", "\\]"), ("$$", "$$"), ("$", "$")):
        if text.startswith(opening) and text.endswith(closing) and len(text) >= len(opening) + len(closing):
            text = text[len(opening) : -len(closing)].strip()
    for pattern, replacement in _SYNONYMS:
        text = pattern.sub(replacement, text)
    return re.sub(r"\s+", " ", text).strip().rstrip(".,;").strip()


def without_unit(text: str) -> str:
    """A cleaned answer without its trailing unit. A single plain letter is a variable and stays, and so do a magnitude and words that
    make another answer of it."""
    found = _TRAILING_TEXT.search(text) or _TRAILING_WORDS.search(text)
    if not found or found.group(1).lower().startswith(_MAGNITUDES) or changes_number("", found.group(1)):
        return text
    return text[: found.start()].strip()


def changes_number(before: str, after: str) -> bool:
    """Whether the words around a number deny it or make another one of it: "not 5", "more than 5", "5 is wrong", "5 squared".

    Only words right beside it do, for others are about what was counted: "number not sold 12", "8 were not sold", "25 squared cm". In
    doubt the number stands.
    """
    return bool(_CHANGES_WHAT_FOLLOWS.search(before) or _CHANGES_WHAT_PRECEDES.match(after.rstrip()))


def unassigned(text: str) -> str:
    """``5`` of ``x = 5``, ``[2, 5)`` of ``x \\in [2, 5)``; an equation whose left side is more than a name stays as it is."""
    return _ASSIGNED.sub("", text, count=1).strip() or text


def normalised(text: str) -> str:
    """The normal form of a cleaned answer: text commands unwrapped, arguments in braces, no space that means nothing."""
    text = _TEXT.sub(lambda found: found.group(1).strip(), text)
    text = re.sub(r"\\frac\s*([0-9A-Za-z])", r"\\frac{\1}", text)
    text = re.sub(r"\\frac\s*(\{[^{}]*\})\s*([0-9A-Za-z])", r"\\frac\1{\2}", text)
    text = re.sub(r"\\sqrt\s*([0-9A-Za-z])", r"\\sqrt{\1}", text)
    text = re.sub(r"([\^_])\s*(\d+|[A-Za-z])", r"\1{\2}", text)
    text = re.sub(r"(?<![0-9A-Za-z])\s+|\s+(?![0-9A-Za-z])", "", text)
    while text.startswith("{") and text.endswith("}") and "{" not in text[1:-1]:
        text = text[1:-1]
    letter = re.fullmatch(r"\(([A-Z])\)", text)
    return letter.group(1) if letter else text


@dataclass(frozen=True, slots=True, kw_only=True)
class Exact:
    """An answer that is a rational number."""

    value: Fraction
    percent: bool
    base: str
    """The base that a subscript names, else empty. The digits stand in ``value`` as they are written."""
    decimals: int
    """Digits written after the decimal point."""


_UNSIGNED = re.compile(r"(?:\d{1,3}(?:,\d{3}){1,12}|\d{1,3}(?: \d{3}){1,12}|\d+)(?:\.\d*)?|\.\d+")
_FRACTION = re.compile(r"(?:(\d+) ?)?\\frac\{(-?[\d.,]+)\}\{(-?[\d.,]+)\}|(?:(\d+) )?([\d.,]+) ?/ ?([\d.,]+)")
_SCIENTIFIC = re.compile(r"([\d.,]+)\\(?:times|cdot) ?10\^(?:\{(-?\d{1,2})\}|(-?\d{1,2}))")


def exact_number(text: str) -> Exact | None:
    """Read a cleaned, unitless answer as an exact number; None for anything that is not plainly one.

    Known: sign, currency, percent, degrees, thousands separators, leading zeros, decimals, fractions, mixed numbers, powers of ten,
    a base as subscript. ``3, 500`` is a list of two.
    """
    is_list = re.search(r"\d,\s", text)
    text = normalised(text)
    if is_list or len(text) > LONGEST_NUMBER:
        return None
    text = text.removesuffix("^{\\circ}")
    base = re.search(r"(?<=\d)_\{(\d{1,2})\}$", text)
    text = text[: base.start()] if base else text
    sign = -1 if text.startswith("-") else 1
    text = text.lstrip("+-") if text[:2] not in ("--", "+-", "-+", "++") else ""
    text = text.strip("$€£ ")
    percent = text.endswith("%")
    value = _unsigned(text.removesuffix("%").strip())
    if value is None:
        return None
    point = re.search(r"\.(\d+)$", text.removesuffix("%"))
    return Exact(value=sign * value, percent=percent, base=base.group(1) if base else "", decimals=len(point[1]) if point else 0)


def _unsigned(text: str) -> Fraction | None:
    if _UNSIGNED.fullmatch(text):
        return Fraction(text.replace(",", "").replace(" ", "").rstrip("."))
    if scientific := _SCIENTIFIC.fullmatch(text):
        factor = _unsigned(scientific[1])
        return None if factor is None else factor * Fraction(10) ** int(scientific[2] or scientific[3])
    if fraction := _FRACTION.fullmatch(text):
        whole = fraction[1] or fraction[4] or "0"
        above, below = fraction[2] or fraction[5], fraction[3] or fraction[6]
        parts = [_unsigned(part.lstrip("-")) for part in (above, below)]
        if parts[0] is None or not parts[1]:
            return None
        negative = above.startswith("-") != below.startswith("-")
        return int(whole) + (-1 if negative else 1) * parts[0] / parts[1]
    return None


def same_number(a: Exact, b: Exact) -> bool:
    """Equal as numbers.

    A percent sign on one side only may mean the number or a hundredth of it: 50% is 50 and 0.5. A decimal with at least
    `ROUNDED_DECIMALS` digits may stand for a fraction that it rounds.
    """
    if a.base and b.base and a.base != b.base:
        return False
    if a.percent != b.percent:
        marked, plain = (a, b) if a.percent else (b, a)
        return plain.value in (marked.value, marked.value / 100)
    return a.value == b.value or _rounds(a, b) or _rounds(b, a)


def _rounds(decimal: Exact, fraction: Exact) -> bool:
    return decimal.decimals >= ROUNDED_DECIMALS and not fraction.decimals and round(fraction.value, decimal.decimals) == decimal.value
