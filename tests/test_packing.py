"""Packed rows: the logits of a document are those that it has alone, or the model is refused."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from loopwise.data import TokenBatch, TraceBatches
from loopwise.loops import parse_loops
from loopwise.models import PACKED_TYPES, ModelError, check_packing, insert
from loopwise.nets.configuration import MODEL_TYPE
from loopwise.training import TrainSettings
from loopwise.training.distributed import join
from loopwise.training.losses import summed_loss
from loopwise.training.preparing import check_model
from tiny import FAMILIES, HYBRIDS, tiny_config, tiny_model, tokens
from tiny_nets import VOCABULARY
from trace_sets import made_traces
from training_cases import Walks

LENGTHS = (9, 1, 14, 6)
ATTENTION = [family for family in FAMILIES if family not in HYBRIDS]


def largest_difference(model: torch.nn.Module) -> float:
    """Between the logits of documents in one row and those of each alone."""
    ids = tokens(1, sum(LENGTHS))
    positions = torch.cat([torch.arange(length) for length in LENGTHS])[None]
    with torch.no_grad():
        packed = model(input_ids=ids, position_ids=positions, use_cache=False).logits[0]
        bounds = [0, *itertools.accumulate(LENGTHS)]
        alone = [model(input_ids=ids[:, start:stop], use_cache=False).logits[0] for start, stop in itertools.pairwise(bounds)]
    return float((packed - torch.cat(alone)).abs().max())


@pytest.mark.parametrize("family", ATTENTION)
def test_attention_keeps_to_the_document(family: str) -> None:
    model = tiny_model(family)
    check_packing(model.config)
    assert largest_difference(model) < 1e-5


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_so_does_a_looped_model(family: str) -> None:
    model = tiny_model(family)
    with torch.no_grad():
        plain = model(input_ids=tokens(1, 8)).logits
        insert(model, parse_loops("1:4 x3"))
        assert not torch.allclose(model(input_ids=tokens(1, 8)).logits, plain, atol=1e-2)
    assert largest_difference(model) < 1e-5


@pytest.mark.parametrize("family", HYBRIDS)
def test_linear_attention_leaks_and_is_refused(family: str) -> None:
    assert largest_difference(tiny_model(family)) > 1e-2
    with pytest.raises(ModelError, match=r"linear_attention layers carry their state over the documents .* a row of its own"):
        check_packing(tiny_config(family))


class Packed(Walks):
    """The same, as documents that do not see one another."""

    def batch(self, step: int, first: int = 0, stop: int | None = None) -> TokenBatch:
        plain = super().batch(step, first, stop)
        places = np.broadcast_to(np.arange(self.sequence_tokens) % 5, plain.input_ids.shape).astype(np.int64)
        return replace(plain, positions=places)


def test_training_refuses_what_leaks_before_its_first_step() -> None:
    model, settings, ranks = tiny_model(HYBRIDS[0]), TrainSettings(num_steps=1), join("cpu")
    assert int(model.get_input_embeddings().weight.shape[0]) >= VOCABULARY
    check_model(model, Walks(), settings, ranks)
    with pytest.raises(ModelError, match="a row of its own"):
        check_model(model, Packed(), settings, ranks)


def test_the_whole_of_a_vision_language_configuration_is_read() -> None:
    config = transformers.Qwen3_5Config(text_config=tiny_config("qwen3_5").to_dict())
    with pytest.raises(ModelError, match="linear_attention"):
        check_packing(config)


def test_state_space_models_are_refused() -> None:
    with pytest.raises(ModelError, match="mamba: its linear_attention layers carry their state"):
        check_packing(transformers.MambaConfig())


@pytest.mark.parametrize("name", ["FalconConfig", "GPTNeoXConfig"])
def test_families_that_are_not_tested_are_refused(name: str) -> None:
    with pytest.raises(ModelError, match="packed rows are not tested in this family"):
        check_packing(getattr(transformers, name)())


def test_every_family_of_the_table_is_tested() -> None:
    tested = {tiny_config(family).model_type for family in ATTENTION}
    assert tested | {MODEL_TYPE} == PACKED_TYPES  # the networks of nets: are tested in test_data_packing


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_an_epoch_has_the_same_loss_packed_and_one_trace_a_row(family: str, tmp_path: Path) -> None:
    traces = made_traces(tmp_path, [5, 9, 30, 12, 17, 3, 8, 21, 2])
    model = tiny_model(family)
    losses = []
    for packed in (True, False):
        batches = TraceBatches(traces, num_sequences=1, sequence_tokens=32, seed=0, packed=packed)
        total, targets = 0.0, 0
        for step in range(batches.num_steps(traces.num_tokens - len(traces))):
            batch = batches.batch(step)
            extra = {} if batch.positions is None else {"position_ids": torch.from_numpy(batch.positions)}
            with torch.no_grad():
                total += float(summed_loss(model, torch.from_numpy(batch.input_ids), torch.from_numpy(batch.targets), **extra))
            targets += int(np.count_nonzero(batch.targets != -100))
        assert targets == traces.num_answer_tokens
        losses.append(total / targets)
    assert abs(losses[0] - losses[1]) < 1e-5
