"""What a decoding rule is, and what it gives: one completion a prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

StopReason = Literal["end", "budget", "forced", "repetition"]

Engine = Literal["eager", "static", "compiled"]
"""How steps run. ``eager``: caches that grow, rows that leave. ``static``: every shape fixed. ``compiled``: static, by torch.compile."""
ENGINES: tuple[Engine, ...] = get_args(Engine)


class DecodingError(ValueError):
    """A decoding that cannot be: the message names the thing, the value and the remedy in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingRule:
    """How the next token is chosen, and what ends the reasoning before the budget does (no-free-loop, section 3, Table 4).

    Raises:
        DecodingError: a temperature below 0, top-p outside (0, 1], a top-k below 0, a reserve below 1, or top-p or top-k
            without a temperature.
    """

    temperature: float = 0.0
    """0 is greedy: the most likely token. Above 0 the logits are divided by it and a token is drawn."""
    top_p: float = 1.0
    """Draw from the smallest set of most likely tokens that holds this much probability; 1 is all of them."""
    top_k: int = 0
    """Draw from this many most likely tokens; 0 is all of them."""
    budget_forcing: bool = False
    """End the reasoning ``reserve_tokens`` before the budget by forcing the text that leads to the answer."""
    reserve_tokens: int = 512
    """Tokens of the budget that budget forcing keeps for the answer, the forced text included (512 in the paper)."""
    repetition_stop: bool = False
    """End the reasoning once the output repeats a period of 4 to 256 tokens three times."""
    thinking: bool = False
    """Ask the chat template for its thinking mode."""

    def __post_init__(self) -> None:
        if not self.temperature >= 0.0:
            raise DecodingError(f"temperature is {self.temperature}; give 0 for greedy decoding or a number above it")
        if not 0.0 < self.top_p <= 1.0:
            raise DecodingError(f"top_p is {self.top_p}; give a probability in (0, 1], 1 to draw from every token")
        if self.top_k < 0:
            raise DecodingError(f"top_k is {self.top_k}; give the number of tokens to draw from, 0 for every token")
        if self.temperature == 0.0 and (self.top_p < 1.0 or self.top_k > 0):
            raise DecodingError(f"top_p={self.top_p} and top_k={self.top_k} have no meaning at temperature 0; give a temperature")
        if self.reserve_tokens < 1:
            raise DecodingError(f"reserve_tokens is {self.reserve_tokens}; budget forcing needs at least 1 token for the answer")

    @property
    def name(self) -> str:
        """The rule's name in tables: ``plain``, ``budget-forcing``, ``repetition-stop``, or the two joined by ``+``."""
        names = [name for name, on in (("budget-forcing", self.budget_forcing), ("repetition-stop", self.repetition_stop)) if on]
        return "+".join(names) or "plain"

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken, so that every sample of a prompt is the same."""
        return self.temperature == 0.0

    def check_budget(self, budget_tokens: int) -> None:
        """Refuse a budget that this rule cannot work with.

        Raises:
            DecodingError: the budget is below 1, or budget forcing's reserve leaves nothing of it for the reasoning.
        """
        if budget_tokens < 1:
            raise DecodingError(f"budget_tokens is {budget_tokens}; give at least 1 token to generate")
        if self.budget_forcing and self.reserve_tokens >= budget_tokens:
            raise DecodingError(
                f"reserve_tokens {self.reserve_tokens} takes the whole budget of {budget_tokens} tokens; "
                "lower the reserve or raise the budget"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What a model wrote after one prompt, and why it stopped."""

    text: str
    """The text, without its end-of-text token and other special tokens; thinking tags stay."""
    token_ids: tuple[int, ...]
    """Every token after the prompt, forced ones and the end of text included."""
    prompt_tokens: int
    generated_tokens: int
    """All tokens after the prompt, forced ones included: what counts against the budget."""
    forced_tokens: int
    forced_mask: tuple[bool, ...]
    """For each of ``token_ids`` whether it was forced."""
    stop_reason: StopReason
    """``end``: an end of text. ``forced``: an end of text after something was forced. ``budget``: the budget ran out.
    ``repetition``: the output repeated and there was no reasoning to end, or it was ended before."""
    finished: bool
    """Whether it ended by an end of text: stop reason ``end`` or ``forced``."""
    seconds: float
    """Its share of its batch's wall time: the prompts' by their tokens, each step's among the rows that still wrote."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a generation stands; handed to the ``progress`` callback at every step."""

    rows_done: int
    num_rows: int
    step: int
    """Steps of this batch so far; without refill, the tokens that each running row has."""
    budget_tokens: int
    """Tokens that a row can have at most."""
    share: float
    """The work done, 0 to 1: rows that ended, and what the running ones have of their budget."""
