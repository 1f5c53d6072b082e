"""Many cases at once: settings of any workload on any cluster, and what is predicted of them.

A case is read strictly (:mod:`tuner.cases.lines`, :mod:`tuner.cases.reading`), what is not covered
is said (:mod:`tuner.cases.coverage`), dry runs are looked up or made (:mod:`tuner.cases.dry_runs`),
and answers go out in the order of the cases (:mod:`tuner.cases.stream`).
"""

from tuner.cases.answers import Finding, answer_of, notes_of, prediction_of
from tuner.cases.coverage import NotCoveredError
from tuner.cases.dry_runs import DryRuns, Policy
from tuner.cases.reading import Case, read_case
from tuner.cases.stream import answer_cases

__all__ = [
    "Case",
    "DryRuns",
    "Finding",
    "NotCoveredError",
    "Policy",
    "answer_cases",
    "answer_of",
    "notes_of",
    "prediction_of",
    "read_case",
]
