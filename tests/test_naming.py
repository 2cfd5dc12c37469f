"""What models are called in verdicts."""

from __future__ import annotations

import pytest

from loopwise.protocol.naming import models_name


@pytest.mark.parametrize(
    "models, name",
    [
        (["smollm2"], "smollm2"),
        (["Qwen/Qwen3-0.6B"], "Qwen/Qwen3-0.6B"),
        (["/data/models/Qwen3-0.6B"], "models/Qwen3-0.6B"),
        (["/a/sets/x/looped/seed-0/model"], "looped/seed-0"),
        (["runs/model"], "runs/model"),
        (["/a/sets/x/looped/seed-0/model", "/a/sets/x/looped/seed-1/model"], "x/looped, 2 seeds"),
        (["/a/x/seed-0/model", "/a/x/seed-0/model"], "x/seed-0"),
        (["/a/one/seed-0/model", "/a/two/seed-1/model", "/a/two/seed-2/model"], "one/seed-0 and 2 more"),
    ],
)
def test_the_end_of_a_path_says_enough(models: list[str], name: str) -> None:
    assert models_name(models) == name
