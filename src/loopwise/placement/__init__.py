"""Where a loop goes: candidates, objectives, nine search algorithms, and exact scores on text. A filter, never a promised gain.

Names are imported when they are first used: a study's summary and report need no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .algorithms import ALGORITHMS, Ask, algorithm_named
    from .objectives import DEPTH_RULE, OBJECTIVES, Objective, centre_of, objective_named
    from .racing import Race
    from .ranks import Ranks, join_ranks
    from .runners import Scored
    from .scorer import TextScorer
    from .searching import ENDS_BY_ITSELF, Ledger, check_search, search, search_name
    from .sharing import Computer, GenericText, SharedText, text_computer
    from .space import Candidate, PlacementError, Space
    from .stability import summarise, write_summary
    from .waves import Known, Measurer, Recorded, Tell, TextMeasurer

_PUBLIC: dict[str, tuple[str, ...]] = {
    "algorithms": ("ALGORITHMS", "Ask", "algorithm_named"),
    "objectives": ("DEPTH_RULE", "OBJECTIVES", "Objective", "centre_of", "objective_named"),
    "racing": ("Race",),
    "ranks": ("Ranks", "join_ranks"),
    "runners": ("Scored",),
    "scorer": ("TextScorer",),
    "searching": ("ENDS_BY_ITSELF", "Ledger", "check_search", "search", "search_name"),
    "sharing": ("Computer", "GenericText", "SharedText", "text_computer"),
    "space": ("Candidate", "PlacementError", "Space"),
    "stability": ("summarise", "write_summary"),
    "waves": ("Known", "Measurer", "Recorded", "Tell", "TextMeasurer"),
}
__all__ = [
    "ALGORITHMS",
    "DEPTH_RULE",
    "ENDS_BY_ITSELF",
    "OBJECTIVES",
    "Ask",
    "Candidate",
    "Computer",
    "GenericText",
    "Known",
    "Ledger",
    "Measurer",
    "Objective",
    "PlacementError",
    "Race",
    "Ranks",
    "Recorded",
    "Scored",
    "SharedText",
    "Space",
    "Tell",
    "TextMeasurer",
    "TextScorer",
    "algorithm_named",
    "centre_of",
    "check_search",
    "join_ranks",
    "objective_named",
    "search",
    "search_name",
    "summarise",
    "text_computer",
    "write_summary",
]
_MODULE_OF = {name: module for module, names in _PUBLIC.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_MODULE_OF[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
