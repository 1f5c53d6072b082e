"""What was emulated is priced by one function, at the rates that it is given."""

from dataclasses import replace

from tests.unit.cost.calibrations import calibration_of
from tuner.core.cluster import Link, parse_cluster
from tuner.core.configuration import Settings, Sharding
from tuner.core.measurement import Collective, Emulation, Measurement, Outcome
from tuner.core.workload import Precision
from tuner.cost.constants import default_costs
from tuner.cost.time.emulated import Rates, priced, rates_of

CLUSTER = parse_cluster("8xa100-80gb")
SETTINGS = Settings(sharding=Sharding.FULL_SHARD)
GATHER = Collective(
    op="all_gather", axis="dp_shard", phase="forward", count=2, bytes=10**9, overlap="exposed"
)
ALONE = Measurement(
    outcome=Outcome.OK,
    emulation=Emulation(
        compute_s={1: (0.3, 0.4)},
        exposed_s={},
        collectives={1: (GATHER,)},
        phases_s={1: {"forward": 0.1, "backward": 0.25}},
    ),
)
CASES = [
    {"kind": "copy", "dtype": "bf16", "elements": 1024},
    {"kind": "matrix", "dtype": "bf16", "rows": 8, "width": 8},
    *(
        {"kind": "collective", "op": "all_gather", "axis": "intra", "dtype": "bf16", "elements": n}
        for n in (10**3, 10**6, 10**8)
    ),
]


def at_links_of(bytes_per_s):
    link = Link() if bytes_per_s is None else Link(bytes_per_s=bytes_per_s, latency_s=0.0)
    return Rates(cluster=replace(CLUSTER, intra_node=link), costs=default_costs(), at="then")


def test_steps_take_their_computing_and_what_they_wait_for():
    found = priced(ALONE, SETTINGS, at_links_of(1e11))
    waits_s = found.emulation.exposed_s[1].value_s
    assert waits_s > 1e9 * 7 / 8 / 1e11
    assert found.step_times_s == {1: (0.3 + waits_s, 0.4 + waits_s)}
    assert found.emulation.priced_at == "then"


def test_without_the_rate_of_a_link_there_are_no_step_times():
    once = priced(ALONE, SETTINGS, at_links_of(1e11))
    found = priced(once, SETTINGS, at_links_of(None))
    assert found.step_times_s == {}
    assert "link within a node" in found.emulation.unpriced
    assert priced(found, SETTINGS, at_links_of(1e11)) == once


def test_rates_are_the_catalogues_or_the_calibrations():
    plain = rates_of(None, Precision.BF16, CLUSTER)
    assert (plain.cluster, plain.costs, plain.at) == (CLUSTER, default_costs(), "")
    calibration = calibration_of(CASES, CLUSTER)
    found = rates_of(calibration, Precision.BF16, CLUSTER)
    assert found.at == calibration.at
    assert found.cluster.intra_node.bytes_per_s == calibration.links["intra"].bytes_per_s.value
