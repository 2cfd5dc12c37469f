"""The second stage's run: from the model of the first stage to a merged one, killed at any moment and gone on with."""

from __future__ import annotations

import os
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from ..decoding import read_chat
from ..models import Loaded, load, loops_of, model_hash
from ..records import write_json
from .adapters import merge_and_compare
from .boxed_reward import Problems
from .distributed import Ranks, join
from .grpo_checkpoints import newest_whole, remove_unusable
from .grpo_settings import LoraGrpo
from .merging import MERGE_FILE
from .metrics import StepMetrics, read_metrics
from .reporting import Reporter, Silent, State
from .saving import MODEL_FOLDER, bind_header, check_unused, lock, save_model
from .settings import Execution, TrainingError
from .tuning import LoopsGiven, load_member

GRPO_FOLDER = "grpo"
RESULT_FILE = "result.json"
"""The figures of a finished stage, in its folder."""
_ADAPTER = "adapter_model.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reinforced:
    """A finished second stage."""

    state: State
    """Its tokens are those of prompts and answers, each counted once."""
    figures: dict[str, float]
    """Named ``grpo_...``: steps, FLOPs, seconds, and means over the first and last tenth of the steps."""


def reinforce(
    base: Path,
    loops: LoopsGiven,
    problems: Problems,
    settings: LoraGrpo,
    out: Path,
    *,
    execution: Execution,
    reporter: Reporter | None = None,
) -> Reinforced:
    """Train a fresh adapter on ``base`` with GRPO, and save the merged model to ``OUT/model``; goes on where a killed call stopped.

    Args:
        base: the model of the first stage. With the adapter switched off and its loop on, it is the reference.
        loops: as it was trained through; None is the twin.

    Raises:
        TrainingError: no TRL; a folder that holds another run; a check that fails (`check_rollout`); a loss that is not finite.
        DecodingError: prompts longer than the model's positions with the budget.
        OSError: the disk is full.
    """
    ranks, folder = join(execution.device), out / GRPO_FOLDER
    reporter = reporter or Silent()
    check_unused(folder)
    handle = lock(folder)
    try:
        loaded = load(
            base,
            loops="none" if loops is None else loops,
            dtype="bf16" if settings.tuning.dtype == "bf16" else "fp32",
            device=ranks.device,
        )
        bind_header(folder, _header(loaded, problems, settings))
        done = newest_whole(folder, reporter.note)
        if done is None or done[1].step < settings.grpo.num_steps:
            remove_unusable(folder, after_step=0 if done is None else done[1].step)
            done = _train(loaded, problems, settings, folder, execution, ranks, reporter)
        checkpoint, state = done
        if not (out / MODEL_FOLDER).is_dir() or not (folder / RESULT_FILE).exists():
            _merge(base, loops, problems, settings, checkpoint, out, ranks)
            write_json(folder / RESULT_FILE, _figures(state, read_metrics(folder)))
        return Reinforced(state=state, figures=_figures(state, read_metrics(folder)))
    finally:
        os.close(handle)


def _train(
    loaded: Loaded, problems: Problems, settings: LoraGrpo, folder: Path, execution: Execution, ranks: Ranks, reporter: Reporter
) -> tuple[Path, State]:
    from .grpo_stage import Stage
    from .grpo_trainer import run_trainer

    run_trainer(
        Stage(
            loaded=loaded,
            chat=read_chat(loaded.model, loaded.tokenizer),
            problems=problems,
            settings=settings,
            folder=folder,
            execution=execution,
            ranks=ranks,
            reporter=reporter,
        )
    )
    found = newest_whole(folder, reporter.note)
    assert found is not None and found[1].step == settings.grpo.num_steps
    return found


def _header(loaded: Loaded, problems: Problems, settings: LoraGrpo) -> dict[str, Any]:
    import peft
    import transformers
    import trl

    return {
        "settings": settings.grpo.to_json() | {"seed": settings.tuning.seed, "dtype": settings.tuning.dtype},
        "adapter": settings.lora.to_json(),
        "problems": problems.identity,
        "model": {"first_weights": model_hash(loaded.model), "loops": [str(loop) for loop in loops_of(loaded.model)]},
        "versions": {
            "trl": trl.__version__,
            "peft": peft.__version__,
            "transformers": transformers.__version__,
            "torch": torch.__version__,
        },
    }


def _merge(base: Path, loops: LoopsGiven, problems: Problems, settings: LoraGrpo, checkpoint: Path, out: Path, ranks: Ranks) -> None:
    """Merge a checkpoint's adapter in fp32 and save the model; ``OUT/grpo/merge.json`` has the change of logits."""
    loaded = load_member(base, loops, lora=settings.lora, seed=settings.tuning.seed)
    copy_adapter(loaded.model, load_file(checkpoint / _ADAPTER))
    loaded.model.to(ranks.device)  # type: ignore[arg-type]  # transformers' wrapper hides the method's signature
    prompt = read_chat(loaded.model, loaded.tokenizer).encode(problems.problems[0].item.prompt, thinking=settings.grpo.thinking)
    change = merge_and_compare(loaded.model, torch.tensor([prompt], device=ranks.device))
    write_json(out / GRPO_FOLDER / MERGE_FILE, asdict(change))
    save_model(out, loaded.model, loaded.tokenizer, ranks)


@torch.no_grad()
def copy_adapter(model: torch.nn.Module, tensors: dict[str, Tensor]) -> None:
    """Copy an adapter, as PEFT writes it, into the fresh one of a model.

    Raises:
        TrainingError: they do not have the same tensors.
    """
    ours = {name.replace(".default.", "."): parameter for name, parameter in model.named_parameters() if "lora_" in name}
    theirs = {name.removeprefix("base_model.model."): tensor for name, tensor in tensors.items()}
    if ours.keys() != theirs.keys():
        name = min(ours.keys() ^ theirs.keys())
        raise TrainingError(f"the adapter that was trained and the model's differ in {name}; give a new --out")
    for name, parameter in ours.items():
        parameter.copy_(theirs[name])


def _figures(state: State, steps: tuple[StepMetrics, ...]) -> dict[str, float]:
    tenth = max(1, len(steps) // 10)
    found: dict[str, float] = {"grpo_steps": state.step, "grpo_tokens": state.tokens, "grpo_seconds": state.seconds}
    if state.flops is not None:
        found["grpo_flops"] = state.flops
    for name in ("reward", "answer_tokens", "ended", "kl"):
        for where, part in (("first", steps[:tenth]), ("last", steps[-tenth:])):
            values = [step.terms[name] for step in part if name in step.terms]
            if values:
                found[f"grpo_{name}_{where}"] = statistics.fmean(values)
    return found
