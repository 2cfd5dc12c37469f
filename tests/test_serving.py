"""The vLLM engine where vLLM is not installed: call sites and caches, decoding rules, sidecars, refusals, on a decoder and an engine of
vLLM's make. That vLLM itself gives the same tokens is tested in test_vllm.py."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from like_vllm import Decoder, Engine, Keeper, fake_vllm
from looped import EVERYTHING, NUM_LAYERS, looped_model
from loopwise import serving
from loopwise.decoding import DecodingError, DecodingRule
from loopwise.decoding import generate as own_generate
from loopwise.loops import LoopError, call_sites, format_loops, parse_loops
from loopwise.models import ModelError, save
from loopwise.serving import ServingError, generate, load_engine
from loopwise.serving.configured import LOOPS, check_way, loops_asked_for, put_loops
from loopwise.serving.looping import loop_layers, share
from loopwise.serving.plugin import ARCHITECTURES, register
from parrot import THINKING_CHAT, Parrot, char_tokenizer, recite
from tiny import tiny_tokenizer, tokens

LOOPS_TO_TRY = (
    "1:4 x2",
    "0:6 x2",
    "4:6 x3 damped beta=0.25",
    "0.mlp x2 + 5.mlp x3 damped beta=0.5",
    "1:5 x2 damped beta=0 + 2:4 x2 + 3.mlp x2 in pass 2",
    EVERYTHING,
)
FAMILIES = ("llama", "qwen3", "qwen3_5")
PROMPT, STEPS = 7, 4


def looped_decoder(family: str, loops: str) -> tuple[Decoder, dict[str, Any]]:
    decoder = Decoder(family)
    return decoder, loop_layers(decoder.layers, parse_loops(loops, NUM_LAYERS), decoder.world.registry)


# --- call sites, caches, weights


@pytest.mark.parametrize("loops", ("none", *LOOPS_TO_TRY))
@pytest.mark.parametrize("family", FAMILIES)
def test_steps_from_caches_give_the_own_engines_full_recompute(family, loops):
    decoder = Decoder(family) if loops == "none" else looped_decoder(family, loops)[0]
    ids = tokens(1, PROMPT + STEPS)[0]
    steps = [decoder(ids[:PROMPT], torch.arange(PROMPT))]
    steps += [decoder(ids[n : n + 1], torch.arange(n, n + 1)) for n in range(PROMPT, PROMPT + STEPS)]
    with torch.no_grad():
        whole = looped_model(family, loops).model(input_ids=ids[None], use_cache=False).last_hidden_state[0]
    assert torch.cat(steps).sub(whole).abs().max() < 1e-4
    assert whole.abs().max() > 1


@pytest.mark.parametrize("loops", LOOPS_TO_TRY)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_call_site_has_the_cache_of_its_slot(family, loops):
    decoder, further = looped_decoder(family, loops)
    decoder(tokens(1, 5)[0], torch.arange(5))
    sites = [site for site in call_sites(parse_loops(loops), NUM_LAYERS) if site.part == "layer"]
    assert [int(name.split(".")[2]) for name in decoder.world.calls] == [site.slot for site in sites]
    assert len(set(decoder.world.calls)) == len(sites) == len(decoder.world.registry) == NUM_LAYERS + len(further)
    assert sorted(map(int, further)) == list(range(NUM_LAYERS, len(sites)))


def test_weights_keep_their_names_and_are_shared():
    before = {name: id(parameter) for name, parameter in Decoder("qwen3_5").named_parameters()}
    decoder, further = looped_decoder("qwen3_5", "0:6 x3")
    after = dict(decoder.named_parameters())
    decoder.loop_caches = torch.nn.ModuleDict(further)
    assert list(before) == list(after) == list(dict(decoder.named_parameters()))
    own = {id(parameter) for parameter in after.values()}
    assert {id(parameter) for cache in further.values() for parameter in cache.parameters()} <= own


def test_a_shared_copy_calls_its_own_methods_and_leaves_the_original_alone():
    decoder = Decoder("llama")
    original = decoder.layers[0].self_attn.attn
    copied = share(original)
    copied.layer_name, copied.extra = "other", torch.nn.Identity()
    assert copied.method.__self__ is copied and original.method.__self__ is original
    assert original.layer_name == "model.layers.0.self_attn.attn" and not hasattr(original, "extra")


def test_layers_of_another_make_are_refused():
    for spoil, said in (
        (lambda layer: layer.__dict__.update(forward=print), "offloads"),
        (lambda layer: setattr(layer, "layer_scale", True), "layer_scale"),
        (lambda layer: delattr(layer, "mlp"), "not written for"),
    ):
        decoder = Decoder("llama")
        spoil(decoder.layers[5])
        with pytest.raises(ModelError, match=said):
            loop_layers(decoder.layers, parse_loops("1:2 x2"), decoder.world.registry)
    decoder = Decoder("llama")
    decoder.world.registry.clear()
    with pytest.raises(ModelError, match="slot 6"):
        loop_layers(decoder.layers, parse_loops("1:2 x2"), decoder.world.registry)
    with pytest.raises(LoopError, match="6 layers"):
        loop_layers(Decoder("llama").layers, parse_loops("5:7 x2"), {})


# --- what a vLLM process is asked for


def vllm_config(folder: Any, **changes: Any) -> Any:
    settings = dict(lora_config=None, speculative_config=None, quant_config=None, additional_config={}) | changes
    parallel = types.SimpleNamespace(rank=settings.pop("rank", 0), pipeline_parallel_size=settings.pop("pipeline", 1))
    compilation = types.SimpleNamespace(static_forward_context=settings.pop("registry", {}))
    model = types.SimpleNamespace(model=str(folder))
    return types.SimpleNamespace(model_config=model, parallel_config=parallel, compilation_config=compilation, **settings)


@pytest.fixture
def folder(tmp_path):
    save(looped_model("llama", "1:4 x2"), tiny_tokenizer(), tmp_path / "m")
    return tmp_path / "m"


def test_loops_come_from_the_folder_unless_others_are_given(folder):
    assert format_loops(loops_asked_for(vllm_config(folder), NUM_LAYERS)) == "1:4 x2"
    for given in ("2:5 x3", "none"):
        assert format_loops(loops_asked_for(vllm_config(folder, additional_config={LOOPS: given}), NUM_LAYERS)) == given
    assert loops_asked_for(vllm_config("some/id"), NUM_LAYERS) == ()


def test_loops_are_put_in_and_written_into_what_vllm_hashes(folder):
    decoder = Decoder("llama")
    config = vllm_config(folder, registry=decoder.world.registry)
    put_loops(decoder, config)
    assert list(decoder.loop_caches) == ["6", "7", "8"] and config.additional_config == {LOOPS: "1:4 x2"}
    plain, unlooped = Decoder("llama"), vllm_config("some/id", pipeline=2)
    put_loops(plain, unlooped)
    assert type(plain.layers) is torch.nn.ModuleList and unlooped.additional_config == {}


def test_a_sidecar_that_no_longer_fits_is_refused(folder):
    with pytest.raises(ModelError, match="6 layers, the model has 8"):
        loops_asked_for(vllm_config(folder), 8)
    (folder / "config.json").write_text((folder / "config.json").read_text() + " ")
    with pytest.raises(ModelError, match="changed"):
        loops_asked_for(vllm_config(folder), NUM_LAYERS)
    assert loops_asked_for(vllm_config(folder, rank=1), NUM_LAYERS)  # the first rank has looked
    (folder / "loop.json").write_text("{")
    with pytest.raises(ModelError, match="damaged"):
        loops_asked_for(vllm_config(folder), NUM_LAYERS)


@pytest.mark.parametrize(
    "way", [dict(pipeline=2), dict(lora_config=1), dict(speculative_config=1), dict(quant_config=1), dict(additional_config=None)]
)
def test_ways_of_running_that_loops_were_not_written_for_are_refused(folder, way):
    with pytest.raises(ModelError, match="turn it off"):
        check_way(vllm_config(folder, **way))
    check_way(vllm_config(folder))


def test_the_plugin_registers_every_class_by_name(monkeypatch):
    given = {}
    vllm = types.ModuleType("vllm")
    vllm.ModelRegistry = types.SimpleNamespace(register_model=given.__setitem__)
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    register()
    assert given == ARCHITECTURES
    for name in ARCHITECTURES.values():
        module, _, ours = name.partition(":")
        source = Path(serving.__file__).with_name(f"{module.rpartition('.')[2]}.py").read_text()
        assert module.startswith("loopwise.serving.") and f"class {ours}(" in source


# --- starting an engine


def test_a_start_that_cannot_be_is_refused_before_vllm_is_imported(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)  # its import fails
    with pytest.raises(ServingError, match=r"not installed.*engines-vllm"):
        load_engine(folder)
    for settings, error, said in (
        (dict(dtype="int4"), ServingError, "int4"),
        (dict(max_tokens=0), ServingError, "max_tokens is 0"),
        (dict(max_rows=True), ServingError, "max_rows is True"),
        (dict(cache_bytes=-1), ServingError, "cache_bytes is -1"),
        (dict(loops="1:9 x2"), LoopError, "6 layers"),
    ):
        with pytest.raises(error, match=said):
            load_engine(folder, **settings)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.1}))
    with pytest.raises(ModelError, match="changed"):
        load_engine(folder)
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["GPT2LMHeadModel"]}))
    with pytest.raises(ModelError, match="GPT2LMHeadModel"):
        load_engine(folder)


# --- decoding rules

OPENER = "\nAnswer: "
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "end": (recite("seven."), {}),
    "budget": (recite("x" * 99), {}),
    "forced": (recite("x" * 99, {OPENER: "7"}), dict(budget_forcing=True, reserve_tokens=15)),
    "forced-budget": (recite("x" * 99), dict(budget_forcing=True, reserve_tokens=15)),
    "thinking": (recite("<think>\n" + "x" * 99, {"</think>\n\n": "7"}), dict(budget_forcing=True, reserve_tokens=15, thinking=True)),
    "repetition": (recite("wxyz" * 9), dict(repetition_stop=True)),
    "repeats-again": (recite("wxyz" * 9, {OPENER: "stuv" * 9}), dict(repetition_stop=True)),
    "anew": (recite("<think>" + "abc</think>" * 3 + "z"), dict(repetition_stop=True, thinking=True)),
    "closed": (recite("<think>x</think>" + "y" * 99), dict(budget_forcing=True, reserve_tokens=15, thinking=True)),
}


def served(model: Any, chunk: int = 1, max_tokens: int = 4096) -> Any:
    engine = types.SimpleNamespace(llm_engine=Engine(model, chunk))
    return types.SimpleNamespace(llm=engine, config=model.config, generation_config=None, max_tokens=max_tokens)


@pytest.mark.parametrize("chunk", [1, 3, 64])
@pytest.mark.parametrize("opener", [OPENER, None])
def test_completions_are_the_own_engines_under_every_rule(monkeypatch, chunk, opener):
    fake_vllm(monkeypatch)
    tokenizer = char_tokenizer(THINKING_CHAT)
    for name, (mind, settings) in CASES.items():
        if settings.get("budget_forcing") and opener is None and not settings.get("thinking"):
            continue
        model, rule = Parrot(tokenizer, {"Q": mind}), DecodingRule(**settings)
        kept: dict[str, Any] = dict(budget_tokens=40, rule=rule, answer_opener=opener)
        (own,) = own_generate(model, tokenizer, ["Q"], **kept)
        engine = served(model, chunk)
        (ours,) = generate(engine, tokenizer, ["Q"], **kept)
        assert not engine.llm.llm_engine.requests, name
        fields = ("text", "token_ids", "forced_mask", "stop_reason", "prompt_tokens", "generated_tokens", "finished")
        assert {f: getattr(ours, f) for f in fields} == {f: getattr(own, f) for f in fields}, name


def test_rows_run_together_and_each_is_reported_as_it_ends(monkeypatch):
    fake_vllm(monkeypatch)
    tokenizer = char_tokenizer()
    model = Parrot(tokenizer, {f"Q{n}": recite("ab" * n) for n in range(1, 6)})
    engine, reported, shares = served(model), [], []
    done = generate(
        engine,
        tokenizer,
        [f"Q{n}" for n in (5, 1, 4, 2, 3)],
        budget_tokens=20,
        batch_size=2,
        on_complete=lambda index, completion: reported.append((index, completion.text)),
        progress=lambda state: shares.append(state.share),
    )
    assert [one.text for one in done] == ["ab" * n for n in (5, 1, 4, 2, 3)]
    assert sorted(reported) == list(enumerate(one.text for one in done)) and reported[0][0] == 1
    assert engine.llm.llm_engine.most == 2 and not engine.llm.llm_engine.requests
    assert shares == sorted(shares) and shares[-1] == 1.0
    assert all(one.seconds >= 0 for one in done)


def test_the_seconds_of_steps_without_a_token_are_shared_too(monkeypatch):
    """vLLM reads long prompts in parts, which give none."""
    fake_vllm(monkeypatch)
    tokenizer = char_tokenizer()
    engine = served(Parrot(tokenizer, {"Q1": recite("ab"), "Q2": recite("abcd")}))
    real, calls, clock = engine.llm.llm_engine.step, [], iter(range(1000))

    def step() -> list[Any]:
        calls.append(None)
        return real() if len(calls) % 3 == 0 else []

    engine.llm.llm_engine.step = step
    monkeypatch.setattr(sys.modules[generate.__module__], "time", types.SimpleNamespace(perf_counter=lambda: next(clock)))
    done = generate(engine, tokenizer, ["Q1", "Q2"], budget_tokens=9)
    assert sum(one.seconds for one in done) == len(calls) and done[0].seconds < done[1].seconds


def test_an_error_on_the_way_takes_back_what_runs(monkeypatch):
    fake_vllm(monkeypatch)
    tokenizer = char_tokenizer()
    engine = served(Parrot(tokenizer, {"Q1": recite("ab"), "Q2": recite("abcd")}))

    def fail(index: int, completion: Any) -> None:
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        generate(engine, tokenizer, ["Q1", "Q2"], budget_tokens=9, on_complete=fail)
    assert not engine.llm.llm_engine.requests
    assert [one.text for one in generate(engine, tokenizer, ["Q1", "Q2"], budget_tokens=9)] == ["ab", "abcd"]


def test_draws_are_named_by_the_key_and_another_one_after_forced_text(monkeypatch):
    fake_vllm(monkeypatch)
    tokenizer = char_tokenizer()
    model = Parrot(tokenizer, {"Q": recite("x" * 99, {OPENER: "7"})})
    rule = DecodingRule(temperature=0.7, top_p=0.9, top_k=5, budget_forcing=True, reserve_tokens=15)

    def seeds(key: tuple[int, ...]) -> list[int]:
        engine = served(model)
        generate(engine, tokenizer, ["Q"], budget_tokens=40, rule=rule, answer_opener=OPENER, keys=[key])
        first = engine.llm.llm_engine.params[0]
        assert (first.temperature, first.top_p, first.top_k) == (0.7, 0.9, 5)
        return [params.seed for params in engine.llm.llm_engine.params]

    assert seeds((1, 2)) == seeds((1, 2)) and len({*seeds((1, 2)), *seeds((1, 3))}) == 4
    greedy = served(model)
    generate(greedy, tokenizer, ["Q"], budget_tokens=3)
    assert not hasattr(greedy.llm.llm_engine.params[0], "seed")


def test_what_cannot_be_decoded_is_refused_before_a_request_is_sent(monkeypatch):
    fake_vllm(monkeypatch)
    tokenizer = char_tokenizer()
    engine = served(Parrot(tokenizer, {"Q": recite("x")}), max_tokens=30)
    for prompts, settings, said in (
        (["Q"], dict(budget_tokens=0), "budget_tokens is 0"),
        ([], dict(budget_tokens=3), "no prompts"),
        (["Q"], dict(budget_tokens=3, batch_size=0), "batch_size"),
        (["Q"], dict(budget_tokens=3, keys=[]), "0 keys"),
        (["Q"], dict(budget_tokens=3, keys=[(-1,)]), "whole numbers"),
        (["Q"], dict(budget_tokens=20), "started for 30"),
    ):
        with pytest.raises(DecodingError, match=said):
            generate(engine, tokenizer, prompts, **settings)
    assert engine.llm.llm_engine.params == []


def test_an_engine_that_ends_a_row_early_is_an_error(monkeypatch):
    fake_vllm(monkeypatch)
    tokenizer = char_tokenizer()
    engine = served(Parrot(tokenizer, {"Q": recite("xxxxx")}))
    engine.llm.llm_engine.step = lambda: [
        types.SimpleNamespace(request_id="0-0", finished=True, outputs=[types.SimpleNamespace(token_ids=[5], finish_reason="length")])
    ]
    with pytest.raises(DecodingError, match="after 1 of 9 tokens"):
        generate(engine, tokenizer, ["Q"], budget_tokens=9)


def test_modules_with_a_cache_are_the_ones_of_the_registry():
    decoder, further = looped_decoder("qwen3_5", "0:6 x2")
    assert all(isinstance(one, Keeper) and decoder.world.registry[getattr(one, one.name_attribute)] is one for one in further.values())
