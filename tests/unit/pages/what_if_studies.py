"""A study whose settings are predicted without any dry run."""

from typing import Any

from tests.unit.api.studies import TINY, question_of
from tuner.core.measurement import Fidelity
from tuner.core.study import Study, StudyState, Terms
from tuner.results import Predictor

BODY: dict[str, Any] = {
    "workload": {"model": TINY, "sequence_length": 32, "global_batch_size": 64},
    "cluster": "8xa100-80gb",
    "framework": "torch",
}


def predicted_study(**terms: Any) -> Study:
    """It, on these terms."""
    return Study(
        id="st-0123456789ab",
        question=question_of(BODY),
        terms=Terms(fidelity=Fidelity.PREDICTED, **terms),
        state=StudyState.DONE,
    )


STUDY = predicted_study()
PREDICTOR = Predictor(STUDY)
