"""Arms on tasks: runs of graded records, preceded by the parity check."""

from .asking import asked_items, items_hash
from .conversations import check_conversations
from .defaults import task_budget_tokens, task_rule, task_samples
from .engines import EvaluationEngine, check_decoding, check_vllm_way, start_vllm
from .log_likelihood import parity_prompts
from .loss import LOSS_TASK, evaluate_loss
from .loss_text import LossText, encode_text
from .parity import Parity, ParityError, check_parity
from .ranks import Ranks, RanksError, join_ranks
from .run import evaluate

__all__ = [
    "LOSS_TASK",
    "EvaluationEngine",
    "LossText",
    "Parity",
    "ParityError",
    "Ranks",
    "RanksError",
    "asked_items",
    "check_conversations",
    "check_decoding",
    "check_parity",
    "check_vllm_way",
    "encode_text",
    "evaluate",
    "evaluate_loss",
    "items_hash",
    "join_ranks",
    "parity_prompts",
    "start_vllm",
    "task_budget_tokens",
    "task_rule",
    "task_samples",
]
