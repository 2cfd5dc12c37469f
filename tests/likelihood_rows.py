"""Small files of made rows for every benchmark that lm-eval asks, in the folders that a data folder has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

WORDS = ("stone", "river", "lamp", "garden", "window", "paper", "bridge", "cloud", "candle", "orchard", "ladder", "kettle")
NUM_ROWS = 8


def _word(n: int) -> str:
    return WORDS[n % len(WORDS)]


def _options(n: int) -> list[str]:
    return [f"the {_word(n + k)}" + " of old" * (k % 2) for k in range(4)]


def _problem(n: int) -> dict[str, Any]:
    return {"question": f"What stood by the {_word(n)}?", "options": _options(n), "answer": "ABCD"[n % 4]}


def row(name: str, n: int) -> dict[str, Any]:
    """Row ``n`` of a benchmark, as the hub has it."""
    question, options = f"Which is near the {_word(n)} number {n}?", _options(n)
    labelled = {"choices": {"text": options, "label": ["A", "B", "C", "D"]}, "answerKey": "ABCD"[n % 4]}
    rows: dict[str, dict[str, Any]] = {
        "arc_easy": {"id": f"q{n}", "question": question, **labelled},
        "arc_challenge": {"id": f"c{n}", "question": question, **labelled},
        "openbookqa": {"id": f"o{n}", "question_stem": question, **labelled},
        "hellaswag": {
            "activity_label": "Walking",
            "ctx_a": f"A man [step] walks to the {_word(n)}.",
            "ctx_b": "" if n % 3 == 0 else "he",
            "endings": [f"sees {one}." for one in options],
            "label": str(n % 4),
        },
        "winogrande": {
            "sentence": f"The {_word(n)} fell on the {_word(n + 3)} because the _ was heavy.",
            "option1": _word(n),
            "option2": _word(n + 3),
            "answer": str(n % 2 + 1),
        },
        "piqa": {"goal": f"Move a {_word(n)}", "sol1": f"lift the {_word(n)} ", "sol2": "wait for rain", "label": n % 2},
        "race": {"article": f"There was a {_word(n)}.", "problems": str([_problem(n), _problem(n + 1)])},
        "sciq": {
            "question": question,
            "correct_answer": options[0],
            **{f"distractor{k}": options[k] for k in (1, 2, 3)},
            "support": " It is known." if n % 2 else "",
        },
        "lambada_openai": {"text": f"He went to the {_word(n)} and then to the {_word(n + 1)}"},
        "lambada_standard": {"text": f"she went to the {_word(n)} and then to the {_word(n + 2)}"},
        "mmlu": {
            "question": question,
            "subject": "anatomy" if n % 2 else "abstract_algebra",
            "choices": options,
            "answer": n % 4,
        },
    }
    return rows[name]


FILES: dict[str, tuple[str, ...]] = {
    "arc_easy": ("arc_easy/test", "arc_easy/train"),
    "arc_challenge": ("arc_challenge/test", "arc_challenge/train"),
    "openbookqa": ("openbookqa/test", "openbookqa/train"),
    "hellaswag": ("hellaswag/validation", "hellaswag/train"),
    "winogrande": ("winogrande/validation", "winogrande/train"),
    "piqa": ("piqa/validation", "piqa/train"),
    "race": ("race/test",),
    "sciq": ("sciq/test", "sciq/train"),
    "lambada_openai": ("lambada/openai_test",),
    "lambada_standard": ("lambada/standard_test",),
    "mmlu": ("mmlu/test", "mmlu/dev"),
}
"""The files of each benchmark: items, and demonstrations where it has some."""


def write_rows(folder: Path, name: str, *, files: tuple[str, ...] | None = None, num_rows: int = NUM_ROWS) -> Path:
    """The files of one benchmark below ``folder``; no row of one file is in another."""
    for number, file in enumerate(FILES[name] if files is None else files):
        path = folder / f"{file}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps(row(name, 100 * number + n)) for n in range(num_rows)]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder
