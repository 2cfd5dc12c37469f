"""Arms on tasks: runs of graded records, preceded by the parity check."""

from .parity import Parity, ParityError, check_parity
from .run import evaluate

__all__ = ["Parity", "ParityError", "check_parity", "evaluate"]
