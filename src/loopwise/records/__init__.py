"""Results on disk: runs of graded answers, and studies of where a loop goes. Append-only, resumable, no torch."""

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
    "REQUIRED_FIELDS",
    "STOP_REASONS",
    "CandidateResult",
    "Record",
    "RecordsError",
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
    "read_json",
    "read_losses",
    "read_records",
    "read_run",
    "read_study",
    "write_json",
]
