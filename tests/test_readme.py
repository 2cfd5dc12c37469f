"""What the README and the docs promise is there: examples run, links lead somewhere, the table lists every command."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from loopwise.cli import COMMANDS
from loopwise.cost import read_shape
from loopwise.recipes.demo import PLACEMENT
from tiny import tiny_config, tiny_model, tiny_tokenizer

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
    rows = re.findall(r"^\| `loopwise ([^`]+)`", (ROOT / "README.md").read_text(), re.MULTILINE)
    longest_first = sorted(COMMANDS, key=len, reverse=True)
    assert {next(name for name in longest_first if f"{row} ".startswith(f"{name} ")) for row in rows} == set(COMMANDS)


def test_the_demo_scores_as_many_spans_as_the_readme_says() -> None:
    config = tiny_config("llama", num_hidden_layers=30)  # SmolLM2-135M's number of layers
    space = PLACEMENT.space.space(read_shape(config.to_dict()))
    assert len(space) == 10 and "scores ten damped spans" in (ROOT / "README.md").read_text()
    assert {loop.stop - loop.start for (loop,) in space} == {3, 5}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_that_are_there(page: Path) -> None:
    text = page.read_text()
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        assert target.startswith("https://") or (page.parent / target).exists(), target
    for mentioned in re.findall(r"`((?:benchmarks|tests|docs|src)/[\w./-]+\.\w+)`", text):
        assert (ROOT / mentioned).exists(), mentioned
