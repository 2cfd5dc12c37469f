"""Candidates for a loop's place, and their scores on held-out text. A filter, never a promised gain."""

from .candidates import PlacementError, damped_grid
from .scores import PlacementScores, ScoredPlacement, score_placements

__all__ = ["PlacementError", "PlacementScores", "ScoredPlacement", "damped_grid", "score_placements"]
