"""Fixed shapes: the tokens are the eager engine's, plain and looped, batched and alone, compiled or not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import loopwise
from loopwise.decoding import DecodingError, DecodingRule, StaticBatch, generate, static
from loopwise.decoding.batch import Batch
from loopwise.loops import parse_loops
from loopwise.models import insert
from parrot import char_tokenizer
from test_slot_refill import DRAWN, LOOPS, decode, ending_model, ids, prompts, toy
from tiny import FAMILIES, tiny_model, tokens
from tiny_nets import tiny_net, token_ids

QUICK = ("llama", "gemma3", "qwen3_5")
"""Full attention, sliding windows shorter than the text, recurrent states."""


@pytest.mark.parametrize("family", FAMILIES)
def test_plain_tokens_are_the_eager_engines(family: str) -> None:
    model = ending_model(family, seed=1)
    for rule in (DecodingRule(), DRAWN):
        eager = decode(model, batch_size=3, rule=rule)
        assert ids(decode(model, batch_size=3, rule=rule, engine="static")) == ids(eager)
    assert len({len(row) for row in ids(eager)}) > 2, "rows end apart, so that slots are refilled"


@pytest.mark.parametrize("family", FAMILIES)
def test_looped_tokens_are_the_eager_engines(family: str) -> None:
    model = ending_model(family, LOOPS["damped and MLP"], seed=2)
    eager = ids(decode(model, batch_size=4, rule=DRAWN))
    assert ids(decode(model, batch_size=4, rule=DRAWN, engine="static")) == eager
    assert ids(decode(model, batch_size=4, rule=DRAWN, engine="static", fixed_rows=True)) == eager


@pytest.mark.parametrize("family", QUICK)
@pytest.mark.parametrize("loops", LOOPS.values(), ids=LOOPS)
def test_loops_of_every_operator(family: str, loops: str) -> None:
    model = ending_model(family, loops, seed=3)
    assert ids(decode(model, batch_size=5, engine="static")) == ids(decode(model, batch_size=5))


@pytest.mark.parametrize("family", QUICK)
def test_a_batch_is_its_rows_alone(family: str) -> None:
    model = ending_model(family, LOOPS["repeat"], seed=1)
    together = ids(decode(model, batch_size=4, rule=DRAWN, engine="static"))
    some = prompts()
    alone = [ids(decode(model, [some[place]], rule=DRAWN, keys=[(0, place)], batch_size=1, engine="static"))[0] for place in (2, 3, 5)]
    assert alone == [together[place] for place in (2, 3, 5)]


@pytest.mark.parametrize("design", ["sandwich", "span-arloop", "injected"])
def test_a_network_with_loops_of_its_own(design: str) -> None:
    net = tiny_net(design)
    some = [token_ids(1, length, seed=length)[0].tolist() for length in (9, 3, 17, 5, 1)]
    done = [
        generate(net, char_tokenizer(None, tags=False), some, budget_tokens=16, batch_size=2, rule=DRAWN, engine=engine)
        for engine in ("eager", "static")
    ]
    assert ids(done[0]) == ids(done[1])


@pytest.mark.parametrize("family", QUICK)
def test_logits_of_every_step_are_those_of_full_recompute(family: str) -> None:
    """Through a refill by a longer and a shorter prompt, and around the ring of a sliding window."""
    model = insert(tiny_model(family), parse_loops("1:3 x2"))
    some = [tokens(1, length, seed=length)[0].tolist() for length in (12, 5, 9)]
    with torch.no_grad():
        batch = StaticBatch(model, some, num_rows=4, num_columns=80, pad_id=0, compiled=False)
        logits = batch.prefill()
        for turn in range(20):
            for row in range(3):
                alone = model(input_ids=torch.tensor([some[row]]), use_cache=False).logits[0, -1]
                torch.testing.assert_close(logits[row], alone, rtol=1e-4, atol=1e-4)
            step = tokens(3, 1, seed=100 + turn)[:, 0].tolist()
            logits = batch.step(step)
            some = [[*ids, token] for ids, token in zip(some, step, strict=True)]
            if turn == 6:
                new = [tokens(1, length, seed=length + 50)[0].tolist() for length in (33, 1)]
                logits = logits.index_copy(0, torch.tensor([2, 0]), batch.refill([2, 0], new))
                some[2], some[0] = new


def test_shapes_never_change(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ending_model("gemma3", LOOPS["repeat"], seed=1)
    shapes = []
    run = static.decode_step

    def watched(model: Any, cache: Any, fed: torch.Tensor, *rest: Any) -> torch.Tensor:
        (named,) = cache.values()
        shapes.append((tuple(fed.shape), tuple(tuple(layer.keys.shape) for layer in named.layers), id(named.layers[0].keys)))
        return run(model, cache, fed, *rest)

    monkeypatch.setattr(static, "decode_step", watched)
    decode(model, batch_size=3, rule=DRAWN, engine="static")
    assert len(shapes) > 20 and len(set(shapes)) == 1
    assert {shape[2] for shape in shapes[0][1]} == {7, static.COLUMN_TOKENS}, "a sliding window has as many columns as it sees"


def test_prompts_run_in_few_widths(monkeypatch: pytest.MonkeyPatch) -> None:
    widths: list[int] = []
    prefill = Batch.prefill

    def watched(self: Batch) -> torch.Tensor:
        widths.append(self.width)
        return prefill(self)

    monkeypatch.setattr(Batch, "prefill", watched)
    decode(ending_model("llama", seed=1), batch_size=3, rule=DRAWN, engine="static")
    assert {width for width in widths if width > 1} == {static.BUCKET_TOKENS}


def test_rows_that_ended_run_on_without_running_off() -> None:
    """Positions end with the columns: GPT-2 has no embedding beyond its own."""
    model = tiny_model("gpt2", n_positions=128)
    with torch.no_grad():
        batch = StaticBatch(model, [[5, 6, 7]], num_rows=2, num_columns=128, pad_id=0, compiled=False)
        batch.prefill()
        for _ in range(140):
            logits = batch.step([9])
    assert logits.isfinite().all()


# --- compiled


@pytest.fixture
def quick_compiler(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """torch.compile without code generation; counts graphs."""
    graphs: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(len(inputs))
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(static.decode_step, dynamic=False, fullgraph=True, backend=backend)
    monkeypatch.setattr(static, "compiled_step", lambda mode: compiled)
    return graphs


@pytest.mark.parametrize("family", [pytest.param(f, marks=() if f in QUICK else pytest.mark.slow) for f in FAMILIES])
def test_compiled_tokens_are_the_eager_engines(family: str, quick_compiler: list[int]) -> None:
    model = ending_model(family, LOOPS["damped and MLP"], seed=2)
    assert ids(decode(model, batch_size=4, rule=DRAWN, engine="compiled")) == ids(decode(model, batch_size=4, rule=DRAWN))
    assert len(quick_compiler) == 1, "one graph, compiled once, whichever rows and prompts come"


def test_calls_and_loops_share_what_is_compiled(quick_compiler: list[int]) -> None:
    model = ending_model("llama", seed=2)
    for loops, graphs in (("none", 1), ("1:4 x2", 2), ("none", 2), ("1:4 x2", 2), ("1:4 x3", 3)):
        loopwise.remove(model)
        if loops != "none":
            loopwise.insert(model, loops)
        compiled = decode(model, batch_size=4, engine="compiled", longest_prompt_tokens=40)
        assert ids(compiled) == ids(decode(model, batch_size=4))
        assert len(quick_compiler) == graphs


@pytest.mark.slow
@pytest.mark.parametrize("family", QUICK)
def test_inductors_tokens_are_the_eager_engines(family: str) -> None:
    torch._dynamo.reset()
    static.compiled_step.cache_clear()
    model = ending_model(family, LOOPS["damped and MLP"], seed=2)
    assert ids(decode(model, batch_size=4, engine="compiled")) == ids(decode(model, batch_size=4))


# --- refusals and evaluations


def refusal(model: Any, **options: Any) -> str:
    with pytest.raises(DecodingError) as caught:
        decode(model, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_models_that_cannot_are_refused_before_anything_runs() -> None:
    model = ending_model("llama")
    model.config._attn_implementation = "flex_attention"
    assert "flex_attention" in refusal(model, engine="static")
    assert "engine 'fast' is unknown; use eager, static, compiled" in refusal(ending_model("llama"), engine="fast")

    class Unheard(torch.nn.Module):
        config = type("Config", (), {"get_text_config": lambda self, decoder: type("Text", (), {"model_type": "unheard"})()})()

    with pytest.raises(DecodingError, match="Unheard: fixed shapes are not tested in this family; use the engine eager"):
        static.check_static(Unheard())  # type: ignore[arg-type]


def test_a_cache_of_another_kind_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(static, "can_refill", lambda cache: False)
    assert "GrowingLayer; fixed shapes are not known for all of them" in refusal(ending_model("llama"), engine="static")


def test_an_evaluation_says_which_engine_ran_and_gives_the_same_answers() -> None:
    runs = {}
    for engine in ("eager", "static"):
        model = ending_model("llama", "1:3 x2", seed=3)
        runs[engine] = loopwise.evaluate(model, char_tokenizer(), toy(), batch_size=4, limit=9, engine=engine)
    assert [run.header["engine"] for run in runs.values()] == ["eager", "static"]
    texts = [[record.text for record in run.records] for run in runs.values()]
    assert texts[0] == texts[1]
