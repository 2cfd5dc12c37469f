"""Who may import whom, and which rooms must import nothing heavy."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src"
PACKAGE = SOURCE / "loopwise"

# The table of docs/design/0001-rooms.md: a room, and the rooms that it may import.
MAY_IMPORT: dict[str, str] = {
    "loops": "",
    "stats": "",
    "records": "loops",
    "cost": "loops",
    "tasks": "",
    "models": "loops nets",
    "nets": "loops",
    "data": "",
    "scoring": "models",
    "decoding": "models loops",
    "evaluation": "models scoring decoding tasks cost records loops data serving",
    "placement": "models scoring stats loops data cost records",
    "training": "models nets data loops cost decoding tasks records",
    "protocol": "records stats cost loops",
    "analysis": "models nets scoring stats records loops data cost",
    "serving": "loops models decoding",
    "report": "records stats cost protocol loops",
    "recipes": "*",
    "cli": "*",
}
LIGHT = ("loops", "stats", "records", "cost", "tasks", "data", "protocol", "report", "cli")
HEAVY = {
    "torch",
    "transformers",
    "scipy",
    "altair",
    "vl_convert",
    "jinja2",
    "math_verify",
    "datasets",
    "peft",
    "trl",
    "accelerate",
    "vllm",
    "lm_eval",
}


def _modules() -> Iterator[tuple[Path, str, str]]:
    """Every module of a room: its file, its dotted name, its room. The package's own ``__init__`` and ``__main__`` belong to none."""
    for file in sorted(PACKAGE.rglob("*.py")):
        parts = file.relative_to(SOURCE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name not in ("loopwise", "loopwise.__main__"):
            yield file, name, name.split(".")[1]


def _imports(nodes: Iterable[ast.AST], package: str) -> Iterator[tuple[int, str]]:
    """The lines and full names of what import statements among ``nodes`` name; ``package`` resolves relative ones."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1]) if node.level else ""
            yield from ((node.lineno, ".".join(filter(None, (base, node.module, alias.name)))) for alias in node.names)


def _module_level(node: ast.AST) -> Iterator[ast.AST]:
    """What runs when a module is imported: no function's body, and nothing that only a type checker reads."""
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        children: Iterable[ast.AST] = node.orelse
    else:
        children = ast.iter_child_nodes(node)
    for child in children:
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
            yield from _module_level(child)


def _faults(file: Path, name: str, room: str, source: str) -> list[str]:
    """What one module imports against the table, function bodies included, and heavily at module level in a light room."""
    tree, package = ast.parse(source), name if file.name == "__init__.py" else name.rpartition(".")[0]
    faults = []
    allowed = {room, *MAY_IMPORT[room].split()}
    for line, imported in _imports(ast.walk(tree), package):
        parts = imported.split(".")
        other = parts[1] if parts[0] == "loopwise" and len(parts) > 1 and parts[1] != "__version__" else room
        if "*" not in allowed and other not in allowed:
            faults.append(f"{file.relative_to(SOURCE)}:{line}: {room} may not import {other}")
    if room in LIGHT:
        for line, imported in _imports(_module_level(tree), package):
            if imported.split(".")[0] in HEAVY:
                faults.append(f"{file.relative_to(SOURCE)}:{line}: the light room {room} imports {imported} at module level")
    return faults


def test_rooms_import_only_what_the_table_allows() -> None:
    modules = list(_modules())
    assert len(modules) > 20
    assert {room for _, _, room in modules} <= MAY_IMPORT.keys(), "a room that is not in the table"
    faults = [fault for file, name, room in modules for fault in _faults(file, name, room, file.read_text(encoding="utf-8"))]
    assert not faults, "\n".join(faults)


def test_light_rooms_load_nothing_heavy() -> None:
    names = [name for _, name, room in _modules() if room in LIGHT and not name.endswith("__main__")]
    check = "found = HEAVY & sys.modules.keys(); assert not found, (name, found)"
    code = f"import sys\nHEAVY = {HEAVY!r}\nfor name in {names!r}:\n    __import__(name); {check}"
    done = subprocess.run([sys.executable, "-c", code], cwd=SOURCE, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_documented_table_is_this_one() -> None:
    text = (PACKAGE.parents[1] / "docs" / "design" / "0001-rooms.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| `")]
    documented = {row[0].strip("`"): row[2] for row in rows}
    words = {"": "nothing", "*": "anything"}
    assert documented == {room: words.get(may, ", ".join(may.split())) for room, may in MAY_IMPORT.items()}


def test_a_breach_is_found() -> None:
    def faults(source: str) -> list[str]:
        return _faults(PACKAGE / "cost" / "x.py", "loopwise.cost.x", "cost", source)

    for source in ("from ..models import x", "import loopwise.models", "from loopwise import models", "if a:\n from ..models.b import c"):
        line = len(source.splitlines())
        assert faults(source) == [f"loopwise/cost/x.py:{line}: cost may not import models"]
    assert faults("def f():\n    from ..models.load import load")
    assert faults("try:\n    import a\nexcept ImportError:\n    import torch.nn") and faults("class A:\n    from scipy import stats")
    assert not faults("from . import y\nfrom ..loops import Loop\ndef f():\n    import torch")
    assert not faults("if TYPE_CHECKING:\n    from torch import Tensor")
