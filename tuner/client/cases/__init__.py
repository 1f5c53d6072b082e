"""Many cases at once: settings of any workload on any cluster, and what is predicted of them.

A case is read strictly (:mod:`~tuner.client.cases.reading`), dry runs are looked up or made
(:mod:`~tuner.client.cases.dry_runs`), and answers go out in the order of the cases
(:mod:`~tuner.client.cases.answers`), with the reason where nothing is predicted.
"""

from tuner.client.cases.answers import Prediction, answer_cases, answer_of, notes_of, prediction_of
from tuner.client.cases.dry_runs import DryRuns, Finding, Policy
from tuner.client.cases.reading import Case, read_case
from tuner.client.values import NotCoveredError

__all__ = [
    "Case",
    "DryRuns",
    "Finding",
    "NotCoveredError",
    "Policy",
    "Prediction",
    "answer_cases",
    "answer_of",
    "notes_of",
    "prediction_of",
    "read_case",
]
