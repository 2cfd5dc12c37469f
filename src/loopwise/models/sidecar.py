"""A loop on disk: ``loop.json`` beside weights that stay as they are.

The folder loads anywhere as the plain model; loopwise reads the sidecar and puts the loop in. The sidecar holds the
hash of every file that makes the base what it is, and a base that has changed since is refused.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers

from ..loops import Loop, LoopError, format_loops, parse_loops
from .families import ModelError

SIDECAR = "loop.json"
_FORMAT = "loopwise-loop/1"
_BASE_FILES = ("config.json", "*.safetensors")
_COPIED_FILES = ("*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja", "*.model", "*.txt", "*.md", "LICENSE*", "NOTICE*")


@dataclass(frozen=True, slots=True)
class Sidecar:
    """What ``loop.json`` says."""

    loops: tuple[Loop, ...]
    num_layers: int
    base: str
    """The name of the model that the loop was put into."""
    base_files: dict[str, str]
    """sha256 of each file of ``_BASE_FILES``."""


def write_sidecar(folder: Path, *, loops: Iterable[Loop], num_layers: int, base: str) -> None:
    """Write ``loop.json`` into a folder that holds the weights."""
    from .. import __version__

    content = {
        "format": _FORMAT,
        "loops": format_loops(loops),
        "num_layers": num_layers,
        "base": base,
        "base_files": hash_files(folder),
        "versions": {"loopwise": __version__, "torch": torch.__version__, "transformers": transformers.__version__},
    }
    (folder / SIDECAR).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def read_sidecar(folder: Path) -> Sidecar | None:
    """The sidecar of a folder, or None where there is none. It does not look at the weights: see `check_base`.

    Raises:
        ModelError: a damaged sidecar.
    """
    file = folder / SIDECAR
    if not file.exists():
        return None
    try:
        content: Any = json.loads(file.read_text(encoding="utf-8"))
        if content["format"] != _FORMAT:
            raise ModelError(f"{file}: format {content['format']!r} is not {_FORMAT!r}; this loopwise cannot read it")
        base_files = {str(name): str(digest) for name, digest in content["base_files"].items()}
        num_layers = int(content["num_layers"])
        return Sidecar(parse_loops(content["loops"], num_layers), num_layers, str(content["base"]), base_files)
    except ModelError:
        raise
    except LoopError as error:
        raise ModelError(f"{file}: {error}") from None
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelError(f"{file}: the sidecar is damaged ({type(error).__name__}: {error}); insert the loop again") from None


def check_base(folder: Path, sidecar: Sidecar) -> None:
    """Refuse weights or a configuration that have changed since the loop was put in.

    Raises:
        ModelError: naming the first file that differs.
    """
    now = hash_files(folder)
    for name in sorted(now.keys() | sidecar.base_files.keys()):
        if now.get(name) != sidecar.base_files.get(name):
            what = "is missing" if name not in now else "is new" if name not in sidecar.base_files else "has changed"
            raise ModelError(f"{folder / name} {what} since the loop was put in; insert the loop into the present base again")


def hash_files(folder: Path) -> dict[str, str]:
    """sha256 of the configuration and of every weights file of a model folder."""
    files = sorted({file for pattern in _BASE_FILES for file in folder.glob(pattern) if file.is_file()})
    return {file.name: _sha256(file, file.stat().st_size, file.stat().st_mtime_ns) for file in files}


@cache
def _sha256(file: Path, size: int, modified_ns: int) -> str:
    """Read once a process while size and time of change stay: every arm of a trial asks."""
    with open(file, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def copy_with_loops(source: Path, out: Path, *, loops: Iterable[Loop], num_layers: int, base: str) -> None:
    """A folder with the base's own files, byte for byte, and the sidecar; it appears whole or not at all.

    Raises:
        ModelError: ``out`` is there and not empty, or the base has no safetensors weights.
    """
    if out.exists() and any(out.iterdir()):
        raise ModelError(f"{out} is not empty; give another --out or empty it first")
    if not any(source.glob("*.safetensors")):
        raise ModelError(f"{source} holds no *.safetensors; convert the weights first (pickled weights are never loaded)")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as scratch:
        part = Path(scratch) / "model"
        part.mkdir()
        for file in sorted({file for pattern in _COPIED_FILES for file in source.glob(pattern) if file.is_file()}):
            if file.name != SIDECAR:
                shutil.copyfile(file, part / file.name)
        write_sidecar(part, loops=loops, num_layers=num_layers, base=base)
        if out.exists():
            out.rmdir()
        part.rename(out)
