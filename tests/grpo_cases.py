"""What tests of reinforcement learning share: a tiny model that boxes an answer now and then, its problems, and small settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from learning_cases import CPU, LORA, TRACES, TUNING
from loopwise.decoding import read_chat
from loopwise.models import load
from loopwise.tasks import Grade, Item, Task
from loopwise.tasks.grading import grade_number
from loopwise.training import Grpo, LoraGrpo, Problem, Problems, Silent, TrainResult, join, train_lora_grpo
from loopwise.training.grpo_stage import Rollouts, Stage
from loopwise.training.grpo_trainer import make_trainer
from tiny import tiny_model
from tiny_nets import VOCABULARY

END = 2
FIRST_BOX, FIRST_END = 8, 48
NUM_ANSWERS = 4
GRPO = Grpo(
    problems=("digits",),
    num_steps=5,
    num_prompts=3,
    num_answers=4,
    budget_tokens=12,
    thinking=False,
    learning_rate=3e-3,
    divergence_weight=0.1,
    checked_tokens=6,
)
SETTINGS = LoraGrpo(tuning=TUNING, lora=LORA, grpo=GRPO)


def boxing_tokenizer() -> PreTrainedTokenizerFast:
    """Words up to token 7, and from there on tokens that are whole boxes with the numbers 0 to 3 in turn."""
    words = {f"w{n}": n for n in range(FIRST_BOX)}
    words |= {f"\\boxed{{{n % NUM_ANSWERS}.{'0' * (n // NUM_ANSWERS)}}}": n for n in range(FIRST_BOX, VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w3"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="w2", pad_token="w0", unk_token="w3")


def boxing_folder(folder: Path, family: str = "llama", **changes: Any) -> Path:
    """A tiny random model of so few tokens that it ends and boxes something by chance."""
    network = tiny_model(family, vocab_size=VOCABULARY, **changes)
    network.generation_config.eos_token_id = [END, *range(FIRST_END, VOCABULARY)]
    network.save_pretrained(folder)
    boxing_tokenizer().save_pretrained(folder)
    return folder


def _grade(item: Item, text: str) -> Grade:
    return grade_number(item.gold, text)


DIGITS = Task(
    name="digits",
    version="1",
    kind="generate",
    budget_tokens=12,
    reserve_tokens=4,
    answer_opener="",
    splits=("test", "train"),
    loader=lambda data, limit, split: (),
    grader=_grade,
)


def digit_problems(count: int = 7) -> Problems:
    """Questions of different lengths, whose right answers go round."""
    items = [
        Item(
            name=f"digit-{n}",
            prompt=" ".join([f"w{4 + n % 4}"] * (1 + n % 3) + [f"w{5 + n // 4}"] * (1 + n // 3)),
            gold=str(n % NUM_ANSWERS),
        )
        for n in range(count)
    ]
    return Problems(problems=tuple(Problem(task=DIGITS, item=item) for item in items))


def train_boxing(model: Path, loops: Any, out: Path, settings: LoraGrpo = SETTINGS, **more: Any) -> TrainResult:
    """Both stages."""
    given: dict[str, Any] = {"execution": CPU, "problems": digit_problems(), **more}
    return train_lora_grpo(model, loops, TRACES, settings, out, **given)


def stage_of(model: Path, loops: Any, folder: Path, settings: LoraGrpo = SETTINGS) -> Stage:
    """A second stage that begins with a model as it is."""
    loaded = load(model, loops="none" if loops is None else loops, dtype=settings.tuning.dtype)
    chat = read_chat(loaded.model, loaded.tokenizer)
    return Stage(
        loaded=loaded,
        chat=chat,
        problems=digit_problems(),
        settings=settings,
        folder=folder,
        execution=CPU,
        ranks=join("cpu"),
        reporter=Silent(),
    )


def trainer_of(stage: Stage) -> Any:
    """TRL's trainer of a stage, in training mode."""
    import trl

    trainer = make_trainer(trl, stage, Rollouts(stage))
    trainer.model.train()
    return trainer


def moved(trainer: Any) -> Any:
    """The trainer with an adapter that does something."""
    generator = torch.Generator().manual_seed(6)
    with torch.no_grad():
        for name, parameter in trainer.model.named_parameters():
            if "lora_B" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return trainer
