"""Named sizes against the numbers that the papers give, the cost account against the networks themselves, and ``loopwise show``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from loopwise.cli import main
from loopwise.cost import CostError, answer_flops, cost_of, describe, read_shape
from loopwise.loops import Loop, call_sites
from loopwise.nets import Architecture, LoopedTransformer, NetError, named, names, own_loops, schedule
from tiny_nets import DESIGNS, tiny_architecture, tiny_net, token_ids

KIB = 1024


def shape_of(name: str, **changes: object) -> object:
    return read_shape(named(name, **changes).as_config())


@pytest.mark.parametrize(
    ("name", "millions", "within"),
    [
        ("prenorm-140m", 143.1, 0.05),
        ("prenorm-370m", 385.9, 0.05),
        ("prenorm-0.6b", 642, 1),
        ("prenorm-1.2b", 1288, 1),
        ("prenorm-nano", 3, 0.1),
        ("free-loop-113m", 113.2, 0.1),
    ],
)
def test_parameters_are_those_of_the_papers(name: str, millions: float, within: float) -> None:
    assert shape_of(name).num_parameters / 1e6 == pytest.approx(millions, abs=within)


@pytest.mark.parametrize(("name", "millions"), [("prenorm-140m", 67.6), ("prenorm-370m", 184.5)])
def test_without_value_embeddings_the_names_would_not_fit(name: str, millions: float) -> None:
    assert shape_of(name, value_embeddings=False).num_parameters / 1e6 == pytest.approx(millions, abs=0.1)


def test_tables_5_and_12() -> None:
    fields = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim")
    found = {size: tuple(getattr(named(f"arloop-{size}"), field) for field in fields) for size in ("140m", "370m", "0.6b", "1.2b")}
    assert found == {
        "140m": (6, 768, 3072, 6, 6, 128),
        "370m": (12, 1024, 4096, 8, 8, 128),
        "0.6b": (18, 1536, 4608, 16, 4, 96),
        "1.2b": (24, 2048, 5632, 16, 4, 128),
    }
    assert [named(f"arloop-{size}").window_blocks for size in found] == [3] * 4


@pytest.mark.parametrize(("name", "loops", "kib"), [("arloop-140m", 4, 72), ("arloop-0.6b", 3, 81), ("arloop-1.2b", 3, 144)])
def test_kv_bytes_are_those_of_a_cache_slot_per_visit(name: str, loops: int, kib: int) -> None:
    cost = cost_of(shape_of(name, num_loops=loops), ())
    assert (cost.kv_bytes_per_token, cost.kv_bytes_ratio) == (kib * KIB, loops)


@pytest.mark.parametrize(
    ("name", "ratio"),
    [("free-loop-113m", 1.22), ("free-loop-113m-dense", 1.0), ("free-loop-113m-dense-16", 1.22), ("free-loop-113m-injected", 1.71)],
)
def test_free_loop_costs_are_those_of_its_table_6(name: str, ratio: float) -> None:
    dense = cost_of(shape_of("free-loop-113m-dense"), ()).flops_per_token
    assert cost_of(shape_of(name), ()).flops_per_token / dense == pytest.approx(ratio, abs=0.005)


@pytest.mark.parametrize("name", [n for n in names() if n.endswith(("nano", "140m", "0.6b"))] + ["free-loop-113m-injected"])
def test_the_account_counts_the_parameters_of_the_network(name: str) -> None:
    with torch.device("meta"):
        net = LoopedTransformer.from_architecture(named(name))
    assert shape_of(name).num_parameters == sum(parameter.numel() for parameter in net.parameters())


@pytest.mark.parametrize("design", DESIGNS)
def test_the_account_counts_the_flops_of_the_network(design: str) -> None:
    net, ids = tiny_net(design), token_ids(2, 8)
    shape = read_shape(net.config.to_diff_dict())
    assert shape.num_parameters == net.num_parameters()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        net(ids, use_cache=False)
    counts = counter.get_flop_counts()["Global"]
    matrices = sum(flops for op, flops in counts.items() if "attention" not in str(op))
    parts = cost_of(shape, ()).breakdown
    assert parts is not None
    if net.config.design == "arloop":  # the reads of depth attention are free in this convention, as norms are
        assert parts.total * ids.numel() <= matrices < 1.2 * parts.total * ids.numel()
    else:
        assert matrices == parts.total * ids.numel()
    assert (parts.injection > 0) is (design in ("injected", "parcae", "span-parcae"))


def test_own_loops_are_counted_and_no_others_taken() -> None:
    shape = shape_of("arloop-140m")
    assert cost_of(shape, ()) == cost_of(shape, (Loop(0, 6, 4),))
    assert cost_of(shape, (), convention="6nd").flops_per_token == 2 * shape.num_parameters * 4
    assert describe(shape, ())["loops"] == "0:6 x4"
    one, counts = shape_of("arloop-140m", num_loops=1), dict(prompt_tokens=3, generated_tokens=4)
    scores = [answer_flops(s, (), scores=True, **counts) - answer_flops(s, (), **counts) for s in (shape, one)]
    assert scores[0] == 4 * scores[1] > 0
    with pytest.raises(CostError, match="takes no further ones"):
        cost_of(shape, (Loop(1, 3, 2),))
    config = named("arloop-140m").as_config()
    del config["window_blocks"], config["num_loops"]
    with pytest.raises(CostError, match="without the field 'num_loops'"):
        read_shape(config)


@pytest.mark.parametrize("design", DESIGNS)
def test_schedules_are_the_call_sites_of_the_loop(design: str) -> None:
    arch = tiny_architecture(design)
    plan = schedule(arch, arch.num_loops)
    steps = [*plan.prelude, *(step for loop in plan.loops for step in loop), *plan.coda]
    sites = call_sites(own_loops(arch), arch.num_hidden_layers)
    assert [(step.layer, step.slot, step.mlp.loop) for step in steps] == [(site.layer, site.slot, site.visit + 1) for site in sites]
    assert plan.num_slots == arch.num_layer_visits == len(sites) == len({step.slot for step in steps})
    effective = [site for step in steps for site in (step.attention, step.mlp)]
    assert [site.index for site in effective] == list(range(2 * len(steps)))
    assert all(site.sublayer == 2 * site.layer + site.is_mlp for site in effective)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(design="postnorm"), "design is 'postnorm'; use prenorm"),
        (dict(num_loops=0), "num_loops is 0; give at least 1"),
        (dict(num_loops=True), "num_loops is True; give a whole number"),
        (dict(num_key_value_heads=2), "3 heads do not share 2 KV heads"),
        (dict(head_dim=7), "needs an even one"),
        (dict(loop_start=3, loop_stop=3), "looped span 3:3 does not lie in 4 layers"),
        (dict(loop_stop=5), "looped span 0:5"),
        (dict(operator="damped"), "damped needs a beta"),
        (dict(beta=0.5), "repeat has none"),
        (dict(operator="damped", beta=1.5), r"beta is 1.5; give a number in \[0, 1\]"),
        (dict(operator="damped", beta=0.5, design="arloop"), "which arloop has not"),
        (dict(input_injection=True, design="arloop"), "input_injection with arloop"),
        (dict(design="parcae", loop_start=1, operator="damped", beta=0.5), "which parcae has not"),
        (dict(window_blocks=3), "prenorm has no residual blocks"),
        (dict(design="arloop", window_blocks=0), "window_blocks is 0"),
        (dict(rms_norm_eps=0.0), "rms_norm_eps is 0.0"),
        (dict(tie_word_embeddings=1), "tie_word_embeddings is 1; give true or false"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(changes: dict[str, object], message: str) -> None:
    with pytest.raises(NetError, match=message) as caught:
        Architecture(**changes)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    for name in ("nets:arloop", "nets:arloop-7b", "nano", "postnorm-nano"):
        with pytest.raises(NetError, match=r"arloop-sw.*370m.*free-loop-113m"):
            named(name)
    assert all(named(f"nets:{name}") == named(name) for name in names())


def test_configurations_and_sizes_need_no_torch() -> None:
    code = "import sys, loopwise.nets.sizes, loopwise.nets.schedule; from loopwise.nets import Recurrence; "
    code += "assert not {'torch', 'transformers', 'numpy'} & sys.modules.keys(); "
    code += "Recurrence(kind='poisson', most=4).draw(seed=0, step=0, num_sequences=1); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_show_prints_parameters_flops_and_kv_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def show(*arguments: str) -> str:
        main(["show", *arguments])
        return capsys.readouterr().out

    text = show("nets:arloop-140m")
    for part in ("6 layers, 143,178,816 parameters", "0:6 x4", "6 -> 24 (4.000x)", "3.901e+08", "73,728 bytes"):
        assert part in text
    found = json.loads(show("nets:arloop-140m", "--json"))
    assert found == json.loads(json.dumps({"model": "nets:arloop-140m", **describe(shape_of("arloop-140m"), ())}))
    tiny_net("span").save_pretrained(tmp_path)
    assert "1:3 x3" in show(str(tmp_path))
    with pytest.raises(SystemExit):
        main(["show", "nets:arloop-7b"])
    assert "no network is called 'nets:arloop-7b'" in capsys.readouterr().err
