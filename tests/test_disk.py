"""A loop on disk: the sidecar, the base beside it, and everything that must be refused."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

import loopwise
from loopwise.models import SIDECAR, ModelError, insert_on_disk, model_hash, resolve_dtype, source_of
from tiny import FAMILIES, tiny_model, tiny_tokenizer, tokens

LOOPS = "1:4 x2 damped beta=0.25 + 1.mlp x3 damped beta=0.5 in pass 1"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "base"
    tiny_model("llama").save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def looped(base: Path) -> Path:
    folder = base.parent / "looped"
    insert_on_disk(base, LOOPS, folder)
    return folder


def logits_of(folder: Path) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = loopwise.load(folder).model(tokens(2, 20)).logits
    return logits


_RELOAD = """
import sys, pickle, torch, loopwise
from tiny import tokens
results = {}
for folder in sys.argv[2:]:
    model, _ = loopwise.load(folder)
    with torch.no_grad():
        results[folder] = (model(tokens(2, 20)).logits, loopwise.format_loops(loopwise.loops_of(model)))
pickle.dump(results, open(sys.argv[1], "wb"))
"""


def test_every_family_reloads_in_a_new_process_with_the_same_logits_and_loops(tmp_path: Path) -> None:
    wanted = {}
    for family in FAMILIES:
        model = loopwise.insert(tiny_model(family), LOOPS)
        folder = tmp_path / family
        loopwise.save(model, tiny_tokenizer(), folder)
        with torch.no_grad():
            wanted[str(folder)] = (model(tokens(2, 20)).logits, LOOPS)
    out = tmp_path / "results.pickle"
    here = Path(__file__).parent
    environment = {"PYTHONPATH": f"{here}:{here.parent / 'src'}", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PATH": "/usr/bin"}
    subprocess.run([sys.executable, "-c", _RELOAD, str(out), *wanted], check=True, env=environment)
    found = pickle.loads(out.read_bytes())
    for folder, (logits, loops) in wanted.items():
        assert torch.equal(found[folder][0], logits), folder
        assert found[folder][1] == loops


def test_the_folder_is_the_base_and_a_sidecar(base: Path, looped: Path) -> None:
    for file in base.iterdir():
        assert (looped / file.name).read_bytes() == file.read_bytes()
    assert {file.name for file in looped.iterdir()} == {file.name for file in base.iterdir()} | {SIDECAR}
    size = [sum(file.stat().st_size for file in folder.iterdir()) for folder in (base, looped)]
    assert size[1] - size[0] < 64 * 1024


def test_it_loads_as_the_plain_model_without_loopwise(base: Path, looped: Path) -> None:
    plain = AutoModelForCausalLM.from_pretrained(looped).eval()
    with torch.no_grad():
        assert torch.equal(plain(tokens(2, 20)).logits, tiny_model("llama")(tokens(2, 20)).logits)


def test_explicit_loops_take_the_place_of_the_sidecars(looped: Path) -> None:
    assert loopwise.format_loops(loopwise.loops_of(loopwise.load(looped).model)) == LOOPS
    assert loopwise.loops_of(loopwise.load(looped, loops="none").model) == ()
    assert loopwise.format_loops(loopwise.loops_of(loopwise.load(looped, loops="0:2 x3").model)) == "0:2 x3"


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_a_changed_base_is_refused_by_its_hash(looped: Path, file: str) -> None:
    content = bytearray((looped / file).read_bytes())
    content[-3] ^= 1
    (looped / file).write_bytes(bytes(content))
    with pytest.raises(loopwise.ModelError, match=rf"{file} has changed since the loop was put in"):
        loopwise.load(looped)


def test_missing_and_added_weights_are_refused(looped: Path) -> None:
    shutil.copy(looped / "model.safetensors", looped / "extra.safetensors")
    with pytest.raises(loopwise.ModelError, match=r"extra.safetensors is new"):
        loopwise.load(looped)
    (looped / "extra.safetensors").unlink()
    (looped / "model.safetensors").unlink()
    with pytest.raises(loopwise.ModelError, match=r"model.safetensors is missing"):
        loopwise.load(looped)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "the sidecar is damaged"),
        ("[]", "the sidecar is damaged"),
        ('{"format": "loopwise-loop/1"}', "the sidecar is damaged"),
        ('{"format": "loopwise-loop/9"}', "cannot read it"),
        (
            '{"format": "loopwise-loop/1", "loops": "4:9 x2", "num_layers": 6, "base": "b", "base_files": {}}',
            "out of range: the model has 6",
        ),
        ('{"format": "loopwise-loop/1", "loops": 7, "num_layers": 6, "base": "b", "base_files": {}}', "loops are 7"),
    ],
)
def test_a_damaged_sidecar_is_refused_in_one_line(looped: Path, content: str, message: str) -> None:
    (looped / SIDECAR).write_text(content)
    with pytest.raises(loopwise.ModelError, match=message) as caught:
        loopwise.load(looped)
    assert "\n" not in str(caught.value)


def test_the_sidecar_says_what_it_was_made_of(looped: Path) -> None:
    content = json.loads((looped / SIDECAR).read_text())
    assert content["loops"] == LOOPS and content["num_layers"] == 6
    assert content["versions"].keys() == {"loopwise", "torch", "transformers"}
    assert content["base_files"].keys() == {"config.json", "model.safetensors"}


def test_bad_loops_and_full_folders_are_refused_before_anything_is_copied(base: Path, looped: Path) -> None:
    out = base.parent / "out"
    with pytest.raises(loopwise.LoopError, match=r"4:9 is out of range: the model has 6 layers"):
        insert_on_disk(base, "4:9 x2", out)
    with pytest.raises(loopwise.ModelError, match="no loop to put in"):
        insert_on_disk(base, "none", out)
    assert not out.exists()
    with pytest.raises(loopwise.ModelError, match="is not empty"):
        insert_on_disk(base, "1:2 x2", looped)
    assert list(base.parent.glob(".out*")) == []


def test_unknown_models_are_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "empty").mkdir()
    for name, message in [
        (tmp_path / "empty", "holds no config.json"),
        (tmp_path / "nowhere" / "at" / "all", "no such folder"),
        ("nobody/no-such-model", "neither a folder nor to be had from the hub"),
    ]:
        with pytest.raises(loopwise.ModelError, match=message) as caught:
            loopwise.load(name)
        assert "\n" not in str(caught.value)


def test_pickled_weights_are_never_loaded(base: Path) -> None:
    state = tiny_model("llama").state_dict()
    (base / "model.safetensors").unlink()
    torch.save(state, base / "pytorch_model.bin")
    with pytest.raises(loopwise.ModelError, match="does not load"):
        loopwise.load(base)


def test_tied_embeddings_stay_tied(tmp_path: Path) -> None:
    model = loopwise.insert(tiny_model("llama", tie_word_embeddings=True), "1:3 x2")
    loopwise.save(model, tiny_tokenizer(), tmp_path)
    again = loopwise.load(tmp_path).model
    assert again.lm_head.weight.data_ptr() == again.model.embed_tokens.weight.data_ptr()


def test_the_models_hash_follows_its_weights_and_not_its_loops(base: Path, looped: Path) -> None:
    assert model_hash(loopwise.load(base).model) == model_hash(loopwise.load(looped).model)
    model = loopwise.load(base).model
    before = model_hash(model)
    with torch.no_grad():
        model.lm_head.weight.add_(1.0)
    assert model_hash(model) != before and source_of(model).weights == "changed in memory"
    one, other = tiny_model("llama"), tiny_model("llama", seed=1)
    assert model_hash(one) == model_hash(tiny_model("llama")) != model_hash(other)


def test_weights_that_do_not_fit_their_config_are_refused(base: Path) -> None:
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 8}))
    with pytest.raises(loopwise.ModelError, match=r"its weights lack model.layers.6"):
        loopwise.load(base)
    (base / "config.json").write_text(json.dumps(config))
    file = base / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(loopwise.ModelError, match="does not load"):
        loopwise.load(base)


def test_a_tied_head_is_not_a_missing_weight(tmp_path: Path) -> None:
    tiny_model("gemma3").save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    loopwise.load(tmp_path)


def test_saving_a_plain_model_takes_the_old_sidecar_away(base: Path) -> None:
    model, tokenizer = loopwise.load(base, loops="1:3 x2")
    loopwise.save(model, tokenizer, base.parent / "saved")
    loopwise.save(loopwise.remove(model), tokenizer, base.parent / "saved")
    assert loopwise.loops_of(loopwise.load(base.parent / "saved").model) == ()


def test_a_damaged_sidecar_can_be_set_aside(looped: Path) -> None:
    (looped / SIDECAR).write_text("{")
    assert loopwise.loops_of(loopwise.load(looped, loops="none").model) == ()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_refused(base: Path) -> None:
    with pytest.raises(loopwise.ModelError, match="no CUDA device"):
        loopwise.load(base, device="cuda")


def test_auto_is_the_weights_own_dtype_or_fp32_where_the_processor_has_no_products_in_it(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dtype_of(dtype: str = "auto") -> torch.dtype:
        return next(loopwise.load(base, dtype=dtype).model.parameters()).dtype

    assert dtype_of() == torch.float32  # the weights' own
    tiny_model("llama").to(torch.bfloat16).save_pretrained(base)
    monkeypatch.setattr("loopwise.models.loading.has_half_products", lambda dtype: True)
    assert dtype_of() == torch.bfloat16
    monkeypatch.setattr("loopwise.models.loading.has_half_products", lambda dtype: dtype == torch.float16)
    hashed = model_hash(loopwise.load(base).model)
    assert dtype_of() == torch.float32 and dtype_of("bf16") == torch.bfloat16
    assert hashed == model_hash(loopwise.load(base, dtype="bf16").model)
    assert resolve_dtype(base / "config.json", "auto", "cuda") == torch.bfloat16
    size = sum(file.stat().st_size for file in base.glob("*.safetensors"))
    pages = {"SC_PAGE_SIZE": 1, "SC_PHYS_PAGES": 4 * size - 1}  # one byte less than twice the weights in fp32
    monkeypatch.setattr("os.sysconf", pages.__getitem__)
    assert dtype_of() == torch.bfloat16
    with pytest.raises(ModelError, match="dtype 'fp8' is unknown; use auto, bf16"):
        dtype_of("fp8")


def test_auto_reads_the_dtype_where_a_config_keeps_it(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    for fields, wanted in (
        ({"torch_dtype": "float16"}, torch.float16),
        ({"dtype": "float32", "text_config": {"dtype": "bfloat16"}}, torch.bfloat16),
        ({"text_config": None}, "auto"),
    ):
        file.write_text(json.dumps(fields))
        assert resolve_dtype(file, "auto", "cuda") == wanted
