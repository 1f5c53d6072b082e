"""A study's question typed again: it asks the same."""

import pytest

from api.pages.form import all_wrong, read_form, texts_of_study
from tests.unit.api.studies import MEASURED, PREDICTED, WORKLOAD
from tuner.client.request import read_request
from tuner.core.framework import installed_versions
from tuner.core.measurement import Fidelity
from tuner.core.study import Study, StudyState

CATALOGUE = {"model": "llama-3.1-8b", "sequence_length": 4096, "global_batch_size": 64}
OWN_GPU = {"name": "ours", "memory_bytes": 2**36}
QUESTIONS = [
    PREDICTED,
    MEASURED,
    {"workload": CATALOGUE, "cluster": "4x8xh100-80gb", "fidelity": "predicted"},
    {"workload": CATALOGUE, "cluster": "2x4xcpu"},
    {"workload": WORKLOAD, "cluster": {"nodes": 1, "gpus_per_node": 2, "gpu": OWN_GPU}},
    {
        "workload": {**WORKLOAD, "model_name": '<b>"ours"</b>', "optimizer": "sgd"},
        "cluster": {
            "nodes": 2,
            "gpus_per_node": 4,
            "gpu": "a100-80gb",
            "inter_node": {"bytes_per_s": 1e9},
        },
        "framework": {"name": "accelerate", "versions": {"accelerate": "1.15.0"}},
        "knobs": {"sharding": ["full_shard"], "tp_size": [1, 2], "sync_each_batch": [False]},
        "budget": {"max_probes": 7, "wall_s": 90.5, "gpu_s": 3600},
        "tolerance": 0.02,
        "headroom": 0.1,
        "pool": "h100s",
    },
    {"workload": WORKLOAD, "cluster": "1xh100-80gb", "memory_limit_gib": 12.5},
]


def _study(body):
    request = read_request(body)
    question = request.question(installed_versions())
    limits = request.limits_at(request.fidelity or Fidelity.MEASURED)
    return Study(id="st-0123456789ab", question=question, limits=limits, state=StudyState.DONE)


@pytest.mark.parametrize("body", QUESTIONS)
def test_it_asks_the_same_on_the_same_terms(body):
    study = _study(body)
    asked = read_form(texts_of_study(study))
    assert all_wrong(asked) == ()
    request = read_request({name: v for name, v in asked.request.items() if v is not None})
    assert request.question(installed_versions()) == study.question
    assert request.fidelity is not None
    assert request.limits_at(request.fidelity) == study.limits
