"""Which earlier studies a question is read with."""

from dataclasses import replace
from itertools import count

import pytest
from sqlalchemy import update
from sqlalchemy.orm import Session

from tuner.core.cluster import parse_cluster
from tuner.core.configuration import Settings
from tuner.core.framework import framework
from tuner.core.measurement import Emulation, Fidelity
from tuner.core.study import Limits, ProbeRequest
from tuner.machine import Machine
from tuner.store.rows import MOST_PROBES
from tuner.store.tables import StudyRow


@pytest.fixture
def plant(store, found, worker):
    """Makes a study with finished probes: ``plant(question, probes=3)``."""
    repetitions = count()

    def make(question, *, probes=1, fidelity=Fidelity.MEASURED, result=found):
        study = store.ask(question, Limits(fidelity=fidelity))
        for _ in range(probes):
            request = ProbeRequest(
                settings=Settings(micro_batch_size=4),
                fidelity=fidelity,
                repetition=next(repetitions),
            )
            assert store.enter_probe(study.id, store.study(study.id).revision, request, None)
            claim = store.claim(study.id, worker)
            assert claim is not None
            assert store.record(claim, result)
        return store.study(study.id)

    return make


def other_batch(question, batch=16):
    return replace(question, workload=replace(question.workload, global_batch_size=batch))


def test_studies_are_read_with_their_past(store, question, plant):
    earlier = plant(other_batch(question))
    asked = store.ask(question, Limits())
    assert [one.id for one in asked.past] == [earlier.id]
    assert asked.past[0].past == ()
    assert store.study(asked.id).past == asked.past
    found = store.find(question)
    assert found.past == asked.past


def test_a_study_is_not_its_own_past(store, question, plant):
    assert plant(question).past == ()
    assert store.similar(question) == ()


def test_the_number_of_nodes_may_differ(store, question, plant):
    one = replace(question, cluster=parse_cluster("8xh100-80gb"))
    plant(one)
    four = replace(question, cluster=parse_cluster("4x8xh100-80gb"))
    assert len(store.similar(four)) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"framework": framework("torch", {"torch": "2.12.0"})},
        {"framework": framework("accelerate", {"torch": "2.13.0"})},
        {"cluster": parse_cluster("cpu:4")},
        {"cluster": parse_cluster("2xh100-80gb")},
    ],
    ids=str,
)
def test_another_stack_or_cluster_is_not_similar(store, question, plant, change):
    plant(replace(question, **change))
    assert store.similar(question) == ()


def test_another_gpu_or_link_is_not_similar(store, question, plant):
    asked = replace(question, cluster=parse_cluster("8xh100-80gb"))
    link = replace(asked.cluster.intra_node, bytes_per_s=1e9)
    plant(replace(question, cluster=parse_cluster("8xa100-80gb")))
    plant(replace(question, cluster=parse_cluster("4xh100-80gb")))
    plant(replace(question, cluster=replace(asked.cluster, intra_node=link)))
    assert store.similar(asked) == ()


def test_only_probes_that_ran_steps_count(store, question, plant, found):
    own = Emulation(compute_s={1: (0.5,)}, exposed_s={}, collectives={})
    plant(other_batch(question, 16), fidelity=Fidelity.PREDICTED)
    plant(
        other_batch(question, 32),
        fidelity=Fidelity.EMULATED,
        result=replace(found, emulation=replace(own, stands_in=True)),
    )
    emulated = plant(
        other_batch(question, 64), fidelity=Fidelity.EMULATED, result=replace(found, emulation=own)
    )
    assert [one.id for one in store.similar(question)] == [emulated.id]


def test_those_asked_last_come_first_and_are_not_too_many(store, question, plant):
    ids = [plant(other_batch(question, 8 * 2**i)).id for i in range(1, 5)]
    with Session(store.transactions.writer) as session, session.begin():
        for year, study_id in enumerate(ids, start=2001):
            row = session.get(StudyRow, study_id)
            row.asked_at = row.asked_at.replace(year=year)
    assert [one.id for one in store.similar(question)] == ids[::-1]
    assert [one.id for one in store.similar(question, limit=2)] == ids[:1:-1]


def test_the_newest_probes_are_read_and_not_too_many(store, question, plant, monkeypatch):
    assert MOST_PROBES >= 100
    monkeypatch.setattr("tuner.store.rows.MOST_PROBES", 3)
    first = plant(other_batch(question, 16), probes=2)
    second = plant(other_batch(question, 32), probes=2)
    found = {one.id: [p.id for p in one.probes] for one in store.similar(question)}
    assert found[second.id] == [p.id for p in second.probes]
    assert found[first.id] == [p.id for p in first.probes[1:]]


def test_a_study_that_cannot_be_read_is_left_out(store, question, plant):
    broken, sound = plant(other_batch(question, 16)), plant(other_batch(question, 32))
    with Session(store.transactions.writer) as session, session.begin():
        other = update(StudyRow).where(StudyRow.id == broken.id)
        session.execute(other.values(limits={"format": "of another version"}))
    assert [one.id for one in store.similar(question)] == [sound.id]


def test_what_another_host_measured_on_cpus_is_no_past(store, question, plant):
    """Nor what was measured before hosts were told apart."""
    one = Machine(name="a", gpus=(), cores=2, memory_bytes=2**33, processor="Xeon A")
    hosts = (one, replace(one, processor="EPYC B"), replace(one, cores=64))
    asked, *others = (
        replace(question, cluster=parse_cluster("cpu:2", there=host)) for host in hosts
    )
    gpu = replace(asked.cluster.gpu, processor="", cores=0)
    before = replace(question, cluster=replace(asked.cluster, gpu=gpu))
    for number, other in enumerate((*others, before), start=1):
        assert other.identity != asked.identity
        plant(other_batch(other, 16 * 2**number))
    assert store.similar(asked) == ()
    assert store.find(asked) is None
    same = plant(other_batch(asked))
    assert [found.id for found in store.similar(asked)] == [same.id]
