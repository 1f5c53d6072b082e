"""What differs between studies: nothing that does is left out, and nothing else is said to."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.profiles import examples
from tests.unit.planner.conftest import make_ok
from tests.unit.results.studies import GIB, MIB, gpu_question, measured_study, predicted_study
from tuner.core.configuration import Settings, Sharding
from tuner.core.measurement import Fidelity
from tuner.core.study import SamplerName
from tuner.explain.known import answer
from tuner.results.summary import Compared, Part, differences

FOUR = Settings(micro_batch_size=4)
SHARDED = Settings(sharding=Sharding.FULL_SHARD, micro_batch_size=4)


def of(*studies):
    found = differences([Compared(study=one, suggestion=answer(one)) for one in studies])
    assert len({(line.part, line.name) for line in found}) == len(found)
    return {(line.part, line.name): line for line in found}


def texts(line):
    return [cell.text for cell in line.cells]


def test_a_study_does_not_differ_from_itself():
    study = measured_study([(FOUR, make_ok(1.0, 500 * MIB))])
    found = of(study, study, study)
    assert not any(line.differs for line in found.values())
    assert {line.part for line in found.values()} == set(Part)
    assert all(len(line.cells) == 3 for line in found.values())


QUESTIONS = st.builds(
    gpu_question,
    st.sampled_from(["2xa100-80gb", "2xa100-40gb", "4xh100-80gb"]),
    st.sampled_from([4, 8]),
    st.sampled_from(["torch", "accelerate", "nanotron"]),
    tp_size=st.sampled_from([(1,), (1, 2)]),
)


@given(one=QUESTIONS, other=QUESTIONS)
@settings(max_examples=examples(8))
def test_questions_differ_where_they_are_not_the_same(one, other):
    found = of(predicted_study(one), predicted_study(other))
    differs = any(line.differs for line in found.values() if line.part is Part.QUESTION)
    assert differs == (one.identity != other.identity)


def test_figures_of_a_cluster_of_the_same_name_are_told():
    question = gpu_question()
    gpu = replace(question.cluster.gpu, memory_bytes=70 * GIB)
    other = replace(question, cluster=replace(question.cluster, gpu=gpu))
    found = of(predicted_study(question), predicted_study(other))
    line = found[Part.QUESTION, "cluster gpu memory_bytes"]
    assert texts(line)[1] == str(70 * GIB)
    assert not found[Part.QUESTION, "cluster"].differs
    assert "cluster gpu name" not in {name for _, name in found}


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"fidelity": Fidelity.PREDICTED}, "fidelity"),
        ({"memory_limit_bytes": 2 * GIB}, "memory limit"),
        ({"tolerance": 0.05}, "tolerance"),
        ({"max_probes": 3}, "probes at most"),
        ({"max_dry_runs": 3}, "dry runs at most"),
        ({"wall_s": 60.0}, "time at most"),
        ({"device_s": 60.0}, "device time at most"),
        ({"pool": "night"}, "pool"),
        ({"sampler": SamplerName.RANDOM}, "sampler"),
    ],
)
def test_each_of_the_terms_is_told(change, name):
    study = measured_study([(FOUR, make_ok(1.0, 500 * MIB))])
    found = of(study, replace(study, limits=replace(study.limits, **change)))
    assert {n for part, n in found if part is Part.TERMS and found[part, n].differs} == {name}


def test_answers_are_told_with_their_numbers():
    one = measured_study([(FOUR, make_ok(1.0, 512 * MIB))])
    other = measured_study([(SHARDED, make_ok(2.0, 1024 * MIB))])
    found = of(one, other)
    speed = found[Part.ANSWER, "tokens/s per rank"]
    assert texts(speed)[0].startswith("512 (")
    assert [cell.quantity and cell.quantity.value for cell in speed.cells] == [512.0, 256.0]
    assert texts(found[Part.ANSWER, "sharding"]) == ["ddp", "full_shard"]
    assert texts(found[Part.ANSWER, "memory needed"]) == [
        "512 MiB, 12% of the limit",
        "1.00 GiB, 25% of the limit",
    ]
    assert not found[Part.ANSWER, "micro_batch_size"].differs
    assert texts(found[Part.COST, "probes"]) == ["1", "1"]
