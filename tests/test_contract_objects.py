"""The contract, fifth part: a looped model as an object that is shared by threads, copied, pickled and compiled. Every family passes."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from looped import CACHES, EVERYTHING, every_family, greedy_cached, logits, looped_model, padded, plain_model, with_cache
from loopwise.loops import parse_loops
from loopwise.models import ModelError, decoder_layers, dynamic_cache, insert, loops_of, operators, remove
from tiny import FAMILIES, tokens

ROWS = [tokens(1, length, seed=length)[0] for length in (12, 7)]


# --- Threads -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def eager_switching() -> Iterator[None]:
    """Threads take turns as often as Python lets them."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


def wrong_in_threads(model: Any, num_forwards: int) -> list[str]:
    """Four threads at once, each with an input of its own length; what differs from the same forward alone."""
    inputs = [tokens(1, 5 + 3 * number, seed=number) for number in range(4)]
    alone = [logits(model, ids) for ids in inputs]
    decoded = [greedy_cached(model, ids, torch.ones_like(ids), 2)[1] for ids in inputs]
    faults: list[str] = []
    start = threading.Barrier(len(inputs))

    def work(number: int) -> None:
        start.wait()
        for turn in range(num_forwards):
            try:
                ids = inputs[number]
                if turn % 4 == 3:
                    same = torch.equal(greedy_cached(model, ids, torch.ones_like(ids), 2)[1], decoded[number])
                else:
                    same = torch.equal(logits(model, ids), alone[number])
            except Exception as error:  # a race may end in any error; it is counted, not hidden
                faults.append(f"thread {number}, turn {turn}: {error!r}")
            else:
                if not same:
                    faults.append(f"thread {number}, turn {turn}: other logits")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return faults


THREADED = ("1:4 x2 damped beta=0.25 + 1:3.mlp x3 damped beta=0.5 in pass 1", "0:5 x2 + 2.mlp x3 in pass 2 + 5.mlp x2")


@every_family
@pytest.mark.parametrize("loops", THREADED)
@pytest.mark.usefixtures("eager_switching")
def test_four_threads_at_once_compute_what_each_computes_alone(family: str, loops: str) -> None:
    assert wrong_in_threads(looped_model(family, loops), 8) == []


@pytest.mark.usefixtures("eager_switching")
def test_many_forwards_of_a_damped_mlp_loop_in_four_threads() -> None:
    assert wrong_in_threads(looped_model("llama", "0:6.mlp x3 damped beta=0.5"), 60) == []


class Shared:
    """State that all threads share, as an MLP hook must not have."""


@pytest.mark.usefixtures("eager_switching")
def test_the_thread_check_sees_shared_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "_captured", Shared())
    assert wrong_in_threads(looped_model("llama", "0:6.mlp x3 damped beta=0.5"), 60)


def test_threads_of_training_keep_their_gradients_apart() -> None:
    loops = "1:4 x2 damped beta=0.25 + 1:3.mlp x3 damped beta=0.5 in pass 1"
    models = [looped_model("llama", loops) for _ in range(4)]
    for model in models:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.train()

    def step(number: int) -> None:
        ids = tokens(2, 6 + number, seed=number)
        models[number](ids, labels=ids).loss.backward()

    def gradients_of(number: int) -> list[Tensor | None]:
        return [parameter.grad for parameter in models[number].parameters()]

    for number in range(4):
        step(number)
    alone = [gradients_of(number) for number in range(4)]
    for model in models:
        model.zero_grad(set_to_none=True)
    threads = [threading.Thread(target=step, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(4):
        for one, other in zip(alone[number], gradients_of(number), strict=True):
            assert one is not None and other is not None and torch.equal(one, other)


# --- Copies ------------------------------------------------------------------------------------------------------------


def pickled(model: Any) -> Any:
    return pickle.loads(pickle.dumps(model))


def saved_by_torch(model: Any) -> Any:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@every_family
@pytest.mark.parametrize("copied", [copy.deepcopy, pickled, saved_by_torch])
def test_a_copy_has_the_loops_and_is_independent(family: str, copied: Any) -> None:
    ids, mask = padded(ROWS)
    model = looped_model(family, EVERYTHING)
    looped, plain = logits(model, ids, mask), logits(plain_model(family), ids, mask)
    twin = copied(model)
    assert loops_of(twin) == loops_of(model) == parse_loops(EVERYTHING)
    assert torch.equal(logits(twin, ids, mask), looped)
    assert torch.equal(greedy_cached(twin, ids, mask, 3)[1], greedy_cached(model, ids, mask, 3)[1])

    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert torch.equal(logits(model, ids, mask), looped)
    twin = copied(model)
    remove(model)
    assert torch.equal(logits(model, ids, mask), plain)
    assert torch.equal(logits(twin, ids, mask), looped)
    insert(remove(twin), "2:5 x2")
    assert torch.equal(logits(model, ids, mask), plain)


def test_a_looped_model_serves_again_after_an_error_in_a_layer() -> None:
    model, ids = looped_model("llama", EVERYTHING), tokens(1, 6)
    looped = logits(model, ids)

    def fail(module: Any, args: Any) -> None:
        raise RuntimeError("out of memory")

    handle = decoder_layers(model)[1].mlp.register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        logits(model, ids)
    handle.remove()
    assert torch.equal(logits(model, ids), looped)


def test_a_forward_leaves_nothing_in_memory() -> None:
    model, ids = looped_model("llama", EVERYTHING), tokens(1, 6)
    logits(model, ids)
    gc.collect()
    gc.disable()
    try:
        cache = dynamic_cache(model)
        logits(model, ids, cache=cache)
        left = weakref.ref(cache)
        del cache
        assert left() is None
    finally:
        gc.enable()
    assert getattr(operators._captured, "residual", None) is None


# --- torch.compile -----------------------------------------------------------------------------------------------------


def assert_compiles(model: Any, backend: str, kind: str | None, tolerance: float = 1e-5) -> None:
    """A full graph gives the same logits, without a cache or, with one of ``kind``, for a prompt and the step after it."""
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    ids, step = tokens(2, 12), tokens(2, 1, seed=1)
    with torch.no_grad():
        if kind is None:
            pairs = [(compiled(ids, use_cache=False).logits, model(ids, use_cache=False).logits)]
        else:
            one, other = (CACHES[kind](model, 16) for _ in range(2))
            pairs = [
                (compiled(x, use_cache=True, **with_cache(model, one)).logits, model(x, use_cache=True, **with_cache(model, other)).logits)
                for x in (ids, step)
            ]
            assert len(one.layers) == len(other.layers) > len(decoder_layers(model))
            pairs += [(_state(ours), _state(theirs)) for ours, theirs in zip(one.layers, other.layers, strict=True)]
    for ours, theirs in pairs:
        assert (ours - theirs).abs().max() <= tolerance


def _state(slot: Any) -> Tensor:
    state: Tensor = slot.recurrent_states[0] if hasattr(slot, "recurrent_states") else slot.keys
    return state


QUICK = (("llama", "dynamic"), ("gemma3", "static"), ("qwen3_5", "dynamic"))
"""Of each kind of slot one: compiling two steps with a cache costs some 5 s each."""
with_every_family_and_cache = pytest.mark.parametrize(
    ("family", "kind"),
    [
        pytest.param(family, kind, marks=() if (family, kind) in QUICK else pytest.mark.slow)
        for family in FAMILIES
        for kind in ("dynamic", "static")
    ],
)


@every_family
def test_a_forward_compiles_to_one_graph(family: str) -> None:
    assert_compiles(looped_model(family, EVERYTHING), "eager", None)


@with_every_family_and_cache
def test_cached_decoding_compiles_to_one_graph(family: str, kind: str) -> None:
    assert_compiles(looped_model(family, EVERYTHING), "eager", kind)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "qwen3_5"])
@pytest.mark.parametrize("kind", [None, "static"])
def test_inductor_compiles_a_forward(family: str, kind: str | None) -> None:
    assert_compiles(looped_model(family, EVERYTHING), "inductor", kind, tolerance=1e-4)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_compiled_model_follows_its_loops(family: str) -> None:
    """Loops put in, changed and taken out after compilation: no stale graph is run."""
    torch._dynamo.reset()
    model, ids = plain_model(family), tokens(2, 12)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    for loops in ("none", "1:4 x2", "1:4 x3", "2.mlp x3 damped beta=0.5", "none"):
        insert(remove(model), loops)
        with torch.no_grad():
            assert (compiled(ids, use_cache=False).logits - model(ids, use_cache=False).logits).abs().max() <= 1e-5


def with_compiled_layers(model: Any) -> Any:
    torch._dynamo.reset()
    for layer in decoder_layers(model)._modules.values():
        assert layer is not None
        layer.compile(fullgraph=True, backend="eager")
    return model


def test_layers_that_are_compiled_one_by_one_loop() -> None:
    ids, loops = tokens(2, 12), "1:4 x2 damped beta=0.25 + 1.mlp x3 in pass 1 + 5.mlp x2"
    eager = logits(looped_model("llama", loops), ids)
    assert (logits(with_compiled_layers(looped_model("llama", loops)), ids) - eager).abs().max() <= 1e-5


def test_layers_that_are_compiled_one_by_one_never_lose_a_hook_in_silence() -> None:
    """By its default settings dynamo runs one layer's graph for another that has a hook; it is refused, or right without that default."""
    ids, loops = tokens(2, 12), "2.mlp x3 damped beta=0.5"
    eager = logits(looped_model("llama", loops), ids)
    with torch._dynamo.config.patch(skip_nnmodule_hook_guards=True), pytest.raises(ModelError, match="or by a wrapper around the layer"):
        logits(with_compiled_layers(looped_model("llama", loops)), ids)
    with torch._dynamo.config.patch(skip_nnmodule_hook_guards=False):
        assert (logits(with_compiled_layers(looped_model("llama", loops)), ids) - eager).abs().max() <= 1e-5
