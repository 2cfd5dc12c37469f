"""``loopwise generate``: what a model with a loop answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro

from .console import print_json


@dataclass(frozen=True)
class Command:
    """Answer one prompt, as one user turn of the model's chat template.

    Example: loopwise generate smollm2 --loops "12:16 x2 damped beta=0.5" "What is 7 + 8?"
    """

    model: Annotated[str, tyro.conf.Positional]
    """A Hugging Face id, a folder (a loop.json in it counts), or smollm2."""
    prompt: Annotated[str, tyro.conf.Positional]
    """The user's turn."""
    loops: str | None = None
    """The loops; default: the folder's own, else none."""
    budget: int = 256
    """Tokens at most."""
    temperature: float = 0.0
    """0 is greedy."""
    top_p: float = 1.0
    """Draw from the smallest set of tokens with this probability."""
    top_k: int = 0
    """Draw from this many tokens; 0 is all."""
    seed: int = 0
    """Seed of the draws."""
    budget_forcing: bool = False
    """Close the thinking, or open the answer, --reserve tokens before the budget."""
    reserve: int = 64
    """Tokens that budget forcing keeps for the answer."""
    answer_opener: str = "\nFinal answer: "
    """What budget forcing writes for a model without thinking tags."""
    repetition_stop: bool = False
    """End the reasoning once it repeats itself three times."""
    thinking: bool = False
    """Use the template's thinking mode."""
    dtype: str = "auto"
    """auto (the weights' own; fp32 on CPUs without half precision), bf16, fp16 or fp32."""
    device: str = "cpu"
    """cpu, cuda, ..."""
    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        from ..decoding import DecodingRule, generate
        from ..loops import format_loops
        from ..models import load, loops_of

        rule = DecodingRule(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            budget_forcing=self.budget_forcing,
            reserve_tokens=self.reserve,
            repetition_stop=self.repetition_stop,
            thinking=self.thinking,
        )
        rule.check_budget(self.budget)
        model, tokenizer = load(self.model, loops=self.loops, dtype=self.dtype, device=self.device)
        (completion,) = generate(
            model, tokenizer, [self.prompt], budget_tokens=self.budget, rule=rule, seed=self.seed, answer_opener=self.answer_opener
        )
        if self.json:
            print_json(
                {
                    "loops": format_loops(loops_of(model)),
                    "text": completion.text,
                    "stop_reason": completion.stop_reason,
                    "finished": completion.finished,
                    "prompt_tokens": completion.prompt_tokens,
                    "generated_tokens": completion.generated_tokens,
                    "forced_tokens": completion.forced_tokens,
                    "seconds": completion.seconds,
                    "token_ids": list(completion.token_ids),
                    "forced_mask": list(completion.forced_mask),
                }
            )
        else:
            print(completion.text)
