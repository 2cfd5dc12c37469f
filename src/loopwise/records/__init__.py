"""Results on disk: runs of graded answers, and studies of where a loop goes. Append-only, resumable, no torch."""

from .answer_costs import COST_COLUMNS, with_cost, with_costs
from .curves import CurveError, LossCurve, read_curve
from .losses import LOSS_FORMAT, LossRecord, LossRun, LossTotals, read_loss_records, read_loss_run, total_of
from .results import ResultsChoice, read_results
from .runs import (
    REQUIRED_FIELDS,
    STOP_REASONS,
    Record,
    RecordsError,
    Run,
    RunWriter,
    parse_record,
    read_json,
    read_records,
    read_run,
    write_json,
)
from .study import (
    CandidateResult,
    SearchTrace,
    Status,
    StepOfSearch,
    Study,
    StudyError,
    check_search_name,
    read_losses,
    read_study,
)
from .study_writing import StudyWriter, TraceWriter, check_study

__all__ = [
    "COST_COLUMNS",
    "LOSS_FORMAT",
    "REQUIRED_FIELDS",
    "STOP_REASONS",
    "CandidateResult",
    "CurveError",
    "LossCurve",
    "LossRecord",
    "LossRun",
    "LossTotals",
    "Record",
    "RecordsError",
    "ResultsChoice",
    "Run",
    "RunWriter",
    "SearchTrace",
    "Status",
    "StepOfSearch",
    "Study",
    "StudyError",
    "StudyWriter",
    "TraceWriter",
    "check_search_name",
    "check_study",
    "parse_record",
    "read_curve",
    "read_json",
    "read_loss_records",
    "read_loss_run",
    "read_losses",
    "read_records",
    "read_results",
    "read_run",
    "read_study",
    "total_of",
    "with_cost",
    "with_costs",
    "write_json",
]
