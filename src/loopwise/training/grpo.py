"""LoRA fine-tuning through the loop on reasoning traces, then GRPO on training problems (no-free-loop, A.3).

"LoRA fine-tuning through the loop on thinking-mode reasoning traces, then group relative policy optimisation (GRPO) on GSM8K and MATH
training problems. The reward is a correct boxed answer after finished thinking."
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torch import nn
from transformers import AutoConfig, AutoTokenizer

from ..data import BatchSource
from ..decoding import read_chat
from ..models import resolve
from ..records import read_json, write_json
from .boxed_reward import Problems
from .distributed import join
from .engine import Evaluate
from .grpo_run import Reinforced, reinforce
from .grpo_settings import LoraGrpo
from .reporting import Reporter, State, TrainResult
from .saving import MODEL_FOLDER
from .settings import Execution, TrainingError, first_difference
from .short_finetune import ShortFinetune, train_short_finetune
from .tuning import LoopsGiven

TRACES_FOLDER = "lora-ft"
"""The model after the first stage, which reinforcement learning begins with and is held to."""
_RESULT_FILE = "result.json"


def train_lora_grpo(
    model: str | Path,
    loops: LoopsGiven,
    source: BatchSource,
    settings: LoraGrpo,
    out: str | Path,
    *,
    problems: Problems,
    execution: Execution | None = None,
    evaluate: Evaluate | None = None,
    reporter: Reporter | None = None,
) -> TrainResult:
    """Train one member of a set through both stages; the same call goes on where a killed one stopped, to the same weights.

    The first stage is the run in ``OUT`` and leaves its model in ``OUT/lora-ft``; the second is the run in ``OUT/grpo``, whose
    ``check.json`` holds the check before its first step.

    Args:
        loops: what both stages, the rollouts and the reference run through; None trains the twin.
        source: traces with targets on the answers only.
        problems: what the second stage asks: training problems, apart from everything that is evaluated.

    Returns:
        The first stage's result with the FLOPs and the seconds of both, the second's figures as its evaluation, and where the model
        lies: ``OUT/model``.

    Raises:
        TrainingError, ModelError, LoopError: bad input, before weights are read where it can be known then; as `train`; a rollout,
            trainer or reference that is not the model that is meant (`check_rollout`).
    """
    out, execution = Path(out), execution or Execution()
    check_before(model, problems, settings, execution)
    first = _first_stage(
        out,
        {"tuning": asdict(settings.tuning), "lora": settings.lora.to_json(), "loops": str(loops), "data": source.identity},
        lambda: train_short_finetune(
            model,
            loops,
            source,
            ShortFinetune(tuning=settings.tuning, lora=settings.lora),
            out,
            execution=execution,
            evaluate=evaluate,
            reporter=reporter,
        ),
    )
    second = reinforce(out / TRACES_FOLDER / MODEL_FOLDER, loops, problems, settings, out, execution=execution, reporter=reporter)
    return replace(
        first, state=_both(first.state, second), evaluation={**first.evaluation, **second.figures}, model_folder=out / MODEL_FOLDER
    )


def check_before(model: str | Path, problems: Problems, settings: LoraGrpo, execution: Execution) -> None:
    """Check what the second stage needs, before the first one begins.

    Raises:
        TrainingError: no TRL, several processes, a micro-batch that does not share out a step's answers, no thinking mode where one is
            asked for, or a prompt that with the budget is longer than the model's positions.
        ModelError: no such model.
        DecodingError: no token is known to end a text.
    """
    if find_spec("trl") is None or find_spec("peft") is None:
        raise TrainingError("GRPO needs TRL and PEFT: pip install 'loopwise[grpo]'")
    if join(execution.device).size > 1:
        raise TrainingError("GRPO runs in one process, and torchrun started several; start it without torchrun")
    check_stage(model, settings, execution, problems)


def check_stage(model: str | Path, settings: LoraGrpo, execution: Execution, problems: Problems | None = None) -> None:
    """`check_before` without what is of this machine.

    Args:
        problems: None where they are not read yet; then the budget alone has to fit into the model's positions.

    Raises:
        TrainingError, ModelError, DecodingError: as `check_before`.
    """
    settings.grpo.micro_batch(execution)
    source = resolve(model)
    config = AutoConfig.from_pretrained(source.folder, trust_remote_code=False, local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(source.folder, trust_remote_code=False, local_files_only=True)
    chat = read_chat(nn.Module(), tokenizer)
    if settings.grpo.thinking and (chat.template is None or chat.thinking is None):
        raise TrainingError(f"{source.name}: GRPO asks in thinking mode, and its chat template has none; give --no-thinking")
    asked = problems.problems if problems is not None else ()
    longest = max((len(chat.encode(problem.item.prompt, thinking=settings.grpo.thinking)) for problem in asked), default=1)
    positions = getattr(config.get_text_config(decoder=True), "max_position_embeddings", None)
    if positions is not None and longest + settings.grpo.budget_tokens > positions:
        raise TrainingError(
            f"{source.name}: the longest problem has {longest if asked else 'some'} tokens and with GRPO's budget of "
            f"{settings.grpo.budget_tokens} needs more than its {positions} positions; give a smaller budget (--grpo-budget)"
        )


def _first_stage(out: Path, bound: dict[str, Any], train: Callable[[], TrainResult]) -> TrainResult:
    """The first stage's result; its model stands in a folder of its own as soon as it is whole.

    Args:
        bound: what decides the stage; a folder that holds another one is refused.
    """
    kept, file = out / TRACES_FOLDER / MODEL_FOLDER, out / TRACES_FOLDER / _RESULT_FILE
    bound = json.loads(json.dumps(bound))
    if not kept.is_dir():
        result = train()
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, {"stage": bound, "state": asdict(result.state), "loss": result.loss, "evaluation": result.evaluation})
        result.model_folder.rename(kept)
    values = read_json(file)
    if (found := first_difference(values["stage"], bound)) is not None:
        name, old, new = found
        raise TrainingError(f"{kept}: was trained with {name} {old}, now it is {new}; give a new --out")
    return TrainResult(state=State(**values["state"]), loss=values["loss"], evaluation=values["evaluation"], model_folder=kept)


def _both(first: State, second: Reinforced) -> State:
    flops = None if first.flops is None or second.state.flops is None else first.flops + second.state.flops
    return replace(first, flops=flops, seconds=first.seconds + second.state.seconds)
