import tomllib
from importlib.resources import files

import pytest

from tuner.core.framework import FrameworkName
from tuner.cost.constants import BETWEEN_NODES, Costs, default_costs, experts_of
from tuner.serialization import plain

TABLES = tomllib.loads(files("tuner.catalog").joinpath("costs.toml").read_text(encoding="utf-8"))


def test_every_constant_of_the_file_has_a_field():
    costs = default_costs()
    for name in ("memory", "device", "time", "torch"):
        assert plain(getattr(costs, name)) == TABLES[name]
    for value, low, high in TABLES["device"].values():
        assert low < value < high


def test_no_constant_may_lack_or_be_unknown():
    less = {k: v for k, v in TABLES["time"].items() if k != "stall_s"}
    known = {name: TABLES[name] for name in ("memory", "device", "torch")}
    with pytest.raises(TypeError, match="stall_s"):
        Costs(**known, time=less)
    with pytest.raises(TypeError, match="stahl_s"):
        Costs(**known, time={**TABLES["time"], "stahl_s": 1.0})


def test_experts_differ_in_what_the_file_says_of_them():
    """Only nanotron's steps have any; the catalogue's own constants come first, and each source's
    nodes are combined with each source's network.
    """
    first, *others = experts_of(FrameworkName.NANOTRON)
    assert first is default_costs()
    mine, other = TABLES["time"], TABLES["time"] | TABLES["elsewhere"]

    def network(table):
        return {name: table[name] for name in BETWEEN_NODES}

    assert network(mine) != network(other)
    assert [plain(costs.time) for costs in others] == [
        mine | network(other), other | network(mine), other,
    ]  # fmt: skip
    assert all(costs.memory == first.memory for costs in others)
    for framework in set(FrameworkName) - {FrameworkName.NANOTRON}:
        assert experts_of(framework) == (first,)
