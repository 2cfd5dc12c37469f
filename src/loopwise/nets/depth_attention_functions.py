"""The functions that depth attention computes with: as they are, or each compiled on its own for training.

A forward pass as one compiled graph needs none of this. Training compiles part by part, because a graph of a whole pass would be
compiled anew for every depth: a read compiled on its own is compiled once for each number of sources, whatever the depth.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .depth_attention_fused import Source, as_source, read_fused
from .depth_attention_reference import read_reference
from .depth_attention_two_phase import between_blocks, merge_running

MOST_COMPILED_SOURCES = 17
"""Reads of more sources are left as they are: full history at twice the loops of ARLoop's Table 1 (R = 8, half a loop a block) still
is compiled, blocks of one sublayer are not. A guess: a read takes the longer to compile the more sources it has, and each number of them
is compiled anew."""


def add_branch(running: Tensor, branch: Tensor, key_eps: float) -> Source:
    """The running block with one more branch output in it."""
    return as_source(running + branch, key_eps)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadFunctions:
    """One function for each kind of work between two sublayers."""

    source: Callable[..., Source] = as_source
    add: Callable[..., Source] = add_branch
    reference: Callable[..., Tensor] = read_reference
    fused: Callable[..., Tensor] = read_fused
    between: Callable[..., tuple[list[Tensor], Tensor]] = between_blocks
    merge: Callable[..., Tensor] = merge_running


EAGER = ReadFunctions()


def compiled(**options: Any) -> ReadFunctions:
    """The same functions, each compiled when it is first called, with options of ``torch.compile``."""
    made = {name: torch.compile(getattr(EAGER, name), **options) for name in ReadFunctions.__dataclass_fields__}
    return ReadFunctions(**made)
