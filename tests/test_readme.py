"""What the README and the docs promise is there: examples run, links lead somewhere, the table lists every command."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from loopwise.cli import COMMANDS
from tiny import tiny_model, tiny_tokenizer

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_the_readmes_python_runs(tmp_path: Path) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    name = "Qwen/Qwen3-0.6B"
    assert name in block
    tiny_model("qwen3", num_hidden_layers=18).save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    scope: dict[str, object] = {}
    exec(block.replace(name, str(tmp_path)).replace("budget_tokens=256", "budget_tokens=16"), scope)
    assert len(scope["answers"]) == 1  # type: ignore[arg-type]


def test_the_readme_lists_every_command() -> None:
    assert set(re.findall(r"^\| `loopwise (\w+)", (ROOT / "README.md").read_text(), re.MULTILINE)) == set(COMMANDS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_that_are_there(page: Path) -> None:
    text = page.read_text()
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        assert target.startswith("https://") or (page.parent / target).exists(), target
    for mentioned in re.findall(r"`((?:benchmarks|tests|docs|src)/[\w./-]+\.\w+)`", text):
        assert (ROOT / mentioned).exists(), mentioned
