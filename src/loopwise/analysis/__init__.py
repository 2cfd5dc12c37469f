"""Analyses of trained models and of their training. The token exchange rate and the thresholds of a loop: no torch."""

from .crossings import CrossingPoint, Interval, Status
from .exchange_rate import CostLine, ExchangeRate, LineResult, RatePoint, exchange_rate, interval_of
from .paired_curves import AnalysisError, IntervalOver, PairedCurves
from .thresholds import ComputeCurve, DifferencePoint, Threshold, compute_curves, thresholds
from .training_runs import FLOPS, LAYERS, TIME, TrainingRun, cost_lines, faults_of_pairs, read_training_run
from .words import line_words, threshold_words, tokens_words

__all__ = [
    "FLOPS",
    "LAYERS",
    "TIME",
    "AnalysisError",
    "ComputeCurve",
    "CostLine",
    "CrossingPoint",
    "DifferencePoint",
    "ExchangeRate",
    "Interval",
    "IntervalOver",
    "LineResult",
    "PairedCurves",
    "RatePoint",
    "Status",
    "Threshold",
    "TrainingRun",
    "compute_curves",
    "cost_lines",
    "exchange_rate",
    "faults_of_pairs",
    "interval_of",
    "line_words",
    "read_training_run",
    "threshold_words",
    "thresholds",
    "tokens_words",
]
