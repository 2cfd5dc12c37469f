"""How long and how fast a model that exists is trained further, and how it is loaded for that: what the learning recipes share."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from ..data import BatchSource
from ..loops import Loop, format_loops
from ..models import Loaded, Source, find_decoder, load, resolve, resolve_loops, trained_loops
from .adapters import LoraSettings, add_lora, lora_targets
from .losses import PLAIN_HEADS
from .pass_schedule import PassSchedule
from .schedules import Schedule
from .settings import Dtype, TrainingError, TrainSettings

LoopsGiven = str | Loop | Iterable[Loop] | None
"""The loops of a member, or None for its twin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """How long and how fast. The paper gives token budgets and nothing else of this; batches are the source's.

    Raises:
        TrainingError: a value that cannot be.
    """

    num_tokens: int
    """Inputs to train on, padding included; rounded down to whole steps."""
    learning_rate: float
    """The peak."""
    warmup_share: float = 0.03
    """Of all steps. A guess: the usual choice in fine-tuning."""
    schedule: Schedule = "cosine"
    """A guess, but for continued pretraining, whose rate is constant (no-free-loop, A.3)."""
    final_factor: float = 0.1
    """The share of the peak that ``cosine`` ends at. A guess."""
    weight_decay: float = 0.0
    """A guess: what a model knows is not to be pulled towards zero."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Of AdamW. A guess."""
    clip_norm: float = 1.0
    """A guess."""
    dtype: Dtype = "bf16"
    """Of products; weights, gradients and optimizer are in fp32. A guess."""
    seed: int = 0
    """Of an adapter's first weights, of passes, and of dropout; the order of the data is the source's own."""

    def __post_init__(self) -> None:
        if isinstance(self.num_tokens, bool) or not isinstance(self.num_tokens, int) or self.num_tokens < 1:
            raise TrainingError(f"num_tokens is {self.num_tokens}; give a whole number, at least 1")
        if not 0 <= self.warmup_share < 1:
            raise TrainingError(f"warmup_share is {self.warmup_share}; give a number in [0, 1)")
        self.settings(2, None)  # all else is checked there

    def num_steps(self, source: BatchSource) -> int:
        """The steps that the tokens make.

        Raises:
            TrainingError: not one.
        """
        step_tokens = source.num_sequences * source.sequence_tokens
        if self.num_tokens < step_tokens:
            raise TrainingError(f"{self.num_tokens} tokens are less than one step of {step_tokens}; give more tokens or smaller batches")
        return self.num_tokens // step_tokens

    def settings(self, num_steps: int, passes: PassSchedule | None) -> TrainSettings:
        """The engine's settings for a number of steps."""
        return TrainSettings(
            num_steps=num_steps,
            seed=self.seed,
            passes=passes,
            learning_rate=self.learning_rate,
            betas=self.betas,
            weight_decay=self.weight_decay,
            schedule=self.schedule,
            warmup_steps=min(math.ceil(self.warmup_share * num_steps), num_steps - 1),
            final_factor=self.final_factor,
            clip_norm=self.clip_norm,
            dtype=self.dtype,
        )


def load_member(
    name: str | Path,
    loops: LoopsGiven,
    *,
    lora: LoraSettings | None = None,
    seed: int = 0,
    plain_head: bool = False,
    needs_padding: bool = False,
) -> Loaded:
    """A model in fp32 with its loops, or without any for the twin, and with a fresh adapter where it is to have one.

    All that can be wrong is looked for in the folder's files and in the model's shape, before weights are read.

    Args:
        loops: None is the twin: also a folder's own loops are left out.
        seed: of the adapter's first weights.
        plain_head: the recipe reads the head's matrix itself.
        needs_padding: the batches are padded, as traces are.

    Raises:
        ModelError: an unknown model or family.
        LoopError: a span outside the model, or loops that exclude each other.
        TrainingError: loops of the model's own, a head that is more than a matrix, LoRA targets that it lacks, no pad token.
    """
    source = resolve(name)
    chosen = resolve_loops(source, "none" if loops is None else loops)
    if loops is not None and not chosen:
        raise TrainingError(f"no loop to learn in {str(loops)!r}; give loops, e.g. '10:14 x2', or None for the twin")
    if own := trained_loops(source):
        raise TrainingError(f"{source.name} was trained with loops of its own ({format_loops(own)}); give a model without")
    if needs_padding:
        _check_padding(source)
    shape = _skeleton(source)
    if chosen:
        find_decoder(shape)
    if plain_head and shape.config.model_type not in PLAIN_HEADS:
        known = ", ".join(sorted(PLAIN_HEADS))
        raise TrainingError(f"{source.name}: the head of a {shape.config.model_type} is not known to be one matrix; use {known}")
    if lora is not None:
        lora_targets(shape, lora)
    loaded = load(name, loops=chosen, dtype="fp32")
    if lora is not None:
        add_lora(loaded.model, lora, seed=seed)
    return loaded


def _skeleton(source: Source) -> Any:
    """The model without weights."""
    config = AutoConfig.from_pretrained(source.folder, trust_remote_code=False, local_files_only=True)
    try:
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    except ValueError as error:
        raise TrainingError(f"{source.name}: is no causal language model ({' '.join(str(error).split())[:160]})") from None


def _check_padding(source: Source) -> None:
    try:
        tokenizer = AutoTokenizer.from_pretrained(source.folder, trust_remote_code=False, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise TrainingError(f"{source.name}: its tokenizer does not load ({' '.join(str(error).split())[:160]})") from None
    if tokenizer.pad_token_id is None:
        raise TrainingError(f"{source.name}: its tokenizer has no pad token; set one that no text has, e.g. <pad>, and save the tokenizer")
