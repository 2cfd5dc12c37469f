"""The physically unrolled model: what an undamped loop must equal. Knows nothing of loopwise."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any


def unrolled_model(model: Any, order: Sequence[int]) -> Any:
    """A deeper model of the same class whose layer ``n`` has the weights and the type of layer ``order[n]`` of ``model``."""
    config = copy.deepcopy(model.config)
    config.num_hidden_layers = len(order)
    for name in ("layer_types", "no_rope_layers"):
        if (of_layer := getattr(config, name, None)) is not None:
            setattr(config, name, [of_layer[layer] for layer in order])
    deeper = type(model)(config).eval()
    prefix = "transformer.h." if hasattr(model, "transformer") else "model.layers."
    state = model.state_dict()
    weights = {name: value for name, value in state.items() if not name.startswith(prefix)}
    for place, layer in enumerate(order):
        source = f"{prefix}{layer}."
        weights |= {f"{prefix}{place}.{name.removeprefix(source)}": value for name, value in state.items() if name.startswith(source)}
    deeper.load_state_dict(weights)
    return deeper
