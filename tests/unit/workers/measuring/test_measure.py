"""A probe's measurement, put together from what its ranks found."""

from dataclasses import replace
from types import SimpleNamespace

from tests.unit.cost.calibrations import calibration_of
from tests.unit.cost.test_emulated import CASES
from tests.unit.workers.measuring.test_emulation import CLUSTER, FIRST, SETTINGS, memory, noted
from tuner.core.cluster import parse_cluster
from tuner.core.measurement import Fidelity, Measurement, Outcome
from tuner.core.study import Limits, Probe, ProbeRequest, ProbeState, Study, StudyState
from tuner.cost.memory.device import device_terms
from workers.measuring.measure import as_rehearsed, kind_of, measure
from workers.measuring.ranks import Kind, Probed
from workers.measuring.records import RankRecord

KIND = Kind(ranks=1, world_size=8, device="cpu")


def exposed_s(question, calibration):
    """Seconds of one exposed gather, of a probe of rank 0 alone."""
    rank = RankRecord(
        rank=0, outcome=Outcome.OK, phase="", error="", ended_at=0.0, emulation=noted(FIRST)
    )
    found = Measurement(outcome=Outcome.OK, memory=memory(), step_times_s={2: (0.35,) * 3})
    probed = Probed(measurement=found, records=(rank,))
    request = ProbeRequest(settings=SETTINGS, fidelity=Fidelity.EMULATED)
    made = measure(
        Study(
            id="st-000000000000",
            question=replace(question, cluster=CLUSTER),
            limits=Limits(fidelity=Fidelity.EMULATED),
            state=StudyState.RUNNING,
            seed=0,
            calibration=calibration,
        ),
        Probe(id=1, request=request, state=ProbeState.RUNNING),
        SimpleNamespace(measure=lambda *_, **__: probed),
        kind=KIND,
        stands_in=False,
        deadline_s=1.0,
        pause=lambda seconds: "",
    )
    return made.emulation.exposed_s[2].value_s


def test_what_was_rehearsed_held_no_device_and_took_no_time():
    cluster = parse_cluster("8xh100-80gb")
    ran = memory()
    found = Measurement(
        outcome=Outcome.OK, memory=ran, wall_s=9.0, device_s=9.0, hardware={"device": "NVIDIA H100"}
    )
    made = as_rehearsed(found, SETTINGS, cluster)
    terms = device_terms(SETTINGS, cluster, ran.allocated_bytes)
    beside = int((terms.context.value or 0) + (terms.communicators.value or 0))
    assert beside > 2**29
    assert made.memory == replace(
        ran, overhead_bytes=beside, device_bytes=ran.reserved_bytes + beside
    )
    assert (made.wall_s, made.device_s, made.step_times_s) == (9.0, 0.0, {})
    assert "NVIDIA" not in str(made.hardware)


def test_what_an_emulated_probe_would_send_is_priced_at_measured_rates(question):
    found = calibration_of(CASES, CLUSTER)
    link = found.links["intra"]
    twice = link.bytes_per_s.scaled(2)
    faster = replace(found, links={"intra": replace(link, bytes_per_s=twice)})
    calibrated_s = exposed_s(question, found)
    assert calibrated_s != exposed_s(question, None)
    assert 0.4 < exposed_s(question, faster) / calibrated_s < 0.6


def test_ranks_are_spread_over_the_machines_that_are_there():
    for cluster, fidelity, machines, ranks, nodes, sharing in [
        ("2x2xcpu", Fidelity.MEASURED, 1, 4, 1, 4),  # groups of one machine
        ("2x2xcpu", Fidelity.MEASURED, 2, 4, 2, 2),
        ("2x2xcpu", Fidelity.EMULATED, 2, 1, 1, 2),
        ("2x8xh100-80gb", Fidelity.MEASURED, 3, 16, 2, 8),
        ("8xh100-80gb", Fidelity.MEASURED, 2, 8, 1, 8),
    ]:
        kind = kind_of(parse_cluster(cluster), fidelity, machines)
        assert (kind.ranks, kind.nodes, kind.sharing) == (ranks, nodes, sharing)
