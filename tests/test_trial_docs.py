"""The worked example of docs/two-tests.md prints what it says it prints."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path


def test_the_worked_example_prints_what_the_page_says():
    page = (Path(__file__).resolve().parents[1] / "docs" / "two-tests.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n(.*?)```", page, re.DOTALL).group(1)
    expected = re.search(r"```text\n(.*?)```", page, re.DOTALL).group(1)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "two-tests.md", "exec"), {})
    assert printed.getvalue() == expected
