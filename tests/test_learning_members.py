"""The members of a set follow from the loops, the model's shape and the names of the controls."""

from __future__ import annotations

import pytest

from loopwise.cost import ModelShape, cost_of, read_shape
from loopwise.loops import format_loops, parse_loops
from loopwise.recipes.learning_members import Controls, Member, beginning, make_members
from loopwise.training import TrainingError

_LLAMA = dict(model_type="llama", hidden_size=64, intermediate_size=96, num_attention_heads=4, vocab_size=100, tie_word_embeddings=True)
_QWEN = dict(
    model_type="qwen3_5_text",
    num_hidden_layers=32,
    hidden_size=2560,
    intermediate_size=9216,
    num_attention_heads=16,
    num_key_value_heads=4,
    head_dim=256,
    linear_num_key_heads=16,
    linear_num_value_heads=32,
    linear_key_head_dim=128,
    linear_value_head_dim=128,
    vocab_size=248320,
    tie_word_embeddings=True,
)
QWEN = read_shape({"model_type": "qwen3_5", "text_config": _QWEN, "tie_word_embeddings": True})
"""Of Qwen3.5-4B's kind: 32 layers, three of four with linear attention."""
SEARCHED = "1:9 x2 + 1.mlp x3 in pass 1"


def shape(num_layers: int) -> ModelShape:
    return read_shape({**_LLAMA, "num_hidden_layers": num_layers})


def members(loops: str, of: ModelShape, *names: str, ratio: float = 1.2, **more: object) -> dict[str, Member]:
    controls = Controls(names=names, **more)  # type: ignore[arg-type]
    found = make_members(parse_loops(loops, of.num_layers), of, controls, flops_ratio=ratio)
    assert [member.name for member in found][:2] == ["looped", "twin"]
    return {member.name: member for member in found}


def text(member: Member) -> str:
    return format_loops(member.loops)


@pytest.mark.parametrize(
    ("loops", "deeper", "relocated"),
    [
        ("12:20 x2", "20:28 x2", "4:12 x2"),
        (SEARCHED, "9:17 x2 + 9.mlp x3 in pass 1", "9:17 x2 + 9.mlp x3 in pass 1"),
        ("0:8 x2 damped beta=0.25", "8:16 x2 damped beta=0.25", "8:16 x2 damped beta=0.25"),
    ],
)
def test_placements_of_the_papers_spans_in_32_layers(loops: str, deeper: str, relocated: str) -> None:
    assert text(members(loops, QWEN, "deeper")["deeper"]) == deeper
    assert text(members(loops, QWEN, "relocated")["relocated"]) == relocated


@pytest.mark.parametrize("name", ["deeper", "relocated", "depth-rule", "random"])
def test_every_placement_costs_as_many_layer_passes(name: str) -> None:
    placed = members(SEARCHED, QWEN, name)[name]
    assert cost_of(QWEN, placed.loops).layer_passes == pytest.approx(cost_of(QWEN, parse_loops(SEARCHED)).layer_passes, abs=1e-9)
    assert placed.role == "placement" and placed.token_factor == 1.0 and text(placed) in placed.why
    # moved by one, the MLP loop of layer 1 would come to lie in a layer with attention, whose MLP is another share of it
    assert placed.loops[1].start % 4 != 3


def test_the_depth_rule_puts_the_centre_where_it_says() -> None:
    (loop, _) = members(SEARCHED, QWEN, "depth-rule")["depth-rule"].loops
    assert 0.45 <= (loop.start + loop.stop) / 2 / 32 <= 0.60
    assert text(members("1:9 x2", shape(32), "depth-rule")["depth-rule"]) == "13:21 x2"  # 17/32 is the nearest to 0.525
    with pytest.raises(TrainingError, match=r"the span 12:20 of a model with 32 layers has its centre at 0\.50, where the rule puts it"):
        members("12:20 x2", QWEN, "depth-rule")


@pytest.mark.parametrize(
    ("loops", "layers", "name", "words"),
    [
        ("12:20 x2", 24, "deeper", "the span 12:20 of a model with 24 layers does not fit 8 layers deeper"),
        ("1:5 x2", 6, "relocated", "leaves no room for a second one"),
        ("0:6 x2", 6, "random", "has no other place of equal cost"),
        ("0:3 x2", 4, "depth-rule", "no span like"),
    ],
)
def test_a_placement_that_the_model_has_no_room_for_is_refused(loops: str, layers: int, name: str, words: str) -> None:
    with pytest.raises(TrainingError, match=words):
        members(loops, shape(layers), name)


def test_a_random_place_is_its_seeds() -> None:
    places = {seed: text(members("12:20 x2", QWEN, "random", random_seed=seed)["random"]) for seed in range(8)}
    assert len(set(places.values())) > 3 and "12:20 x2" not in places.values()
    assert places[3] == text(members("12:20 x2", QWEN, "random", random_seed=3)["random"])


def test_loops_by_hand_are_of_equal_cost() -> None:
    assert text(members("12:20 x2", QWEN, "hand", hand="4:8 x3")["hand"]) == "4:8 x3"
    with pytest.raises(TrainingError, match=r"4:8 x2, make 36 layer passes, 12:20 x2 makes 40; give loops of equal cost"):
        members("12:20 x2", QWEN, "hand", hand="4:8 x2")
    with pytest.raises(TrainingError, match="the control hand and its loops go together"):
        Controls(names=("hand",))


def test_two_controls_at_one_place_are_refused() -> None:
    with pytest.raises(TrainingError, match="control deeper would be 9:17 x2, which relocated is already"):
        members("1:9 x2", QWEN, "relocated", "deeper")


def test_longer_training_is_for_both_members() -> None:
    found = members("12:20 x2", QWEN, "x1.5", "x3")
    assert {name: (one.role, one.token_factor, one.unlooped) for name, one in found.items()} == {
        "looped": ("looped", 1.0, False),
        "twin": ("twin", 1.0, True),
        "looped-x1.5": ("looped", 1.5, False),
        "twin-x1.5": ("twin", 1.5, True),
        "looped-x3": ("looped", 3.0, False),
        "twin-x3": ("twin", 3.0, True),
    }
    lengths = members("12:20 x2", QWEN, "lengths", "x3")
    assert sorted(lengths) == ["looped", "looped-x3", "twin", "twin-x1.25", "twin-x3"]


def test_equal_flops_is_counted_or_measured() -> None:
    counted = members("12:20 x2", QWEN, "equal-flops", ratio=1.16)["equal-flops"]
    assert counted.token_factor == 1.16 and counted.unlooped
    assert members("12:20 x2", QWEN, "equal-flops", equal="measured")["equal-flops"].token_factor is None


@pytest.mark.parametrize("name", ["x1", "x0.5", "x1000", "xK", "deepest", ""])
def test_a_control_that_does_not_exist_is_refused(name: str) -> None:
    with pytest.raises(TrainingError, match="control"):
        Controls(names=(name,))


def test_a_member_begins_with_its_counterpart_or_with_the_one_named() -> None:
    made = members("12:20 x2", QWEN, "x3", "relocated", "equal-flops")
    there = ("looped", "twin", "relocated")
    found = {name: beginning(member, there, None).begins_with for name, member in made.items()}
    assert found == {
        "looped": "looped",
        "twin": "twin",
        "looped-x3": "looped",
        "twin-x3": "twin",
        "relocated": "relocated",
        "equal-flops": "twin",
    }
    assert {beginning(member, there, "twin").begins_with for member in made.values()} == {"twin"}
    with pytest.raises(TrainingError, match="relocated begins with relocated, which the set before lacks; it has looped, twin"):
        beginning(made["relocated"], ("looped", "twin"), None)
