import tomllib
from dataclasses import asdict
from importlib.resources import files

import pytest

from tuner.cost.constants import Costs, default_costs

TABLES = tomllib.loads(files("tuner.catalog").joinpath("costs.toml").read_text(encoding="utf-8"))


def test_every_constant_of_the_file_has_a_field() -> None:
    costs = default_costs()
    for name in ("memory", "time"):
        assert asdict(getattr(costs, name)) == TABLES[name]
    for name, (value, low, high) in TABLES["device"].items():
        assert getattr(costs.device, name) == (value, low, high)
        assert low < value < high


def test_no_constant_may_lack_or_be_unknown() -> None:
    less = {k: v for k, v in TABLES["time"].items() if k != "stall_s"}
    with pytest.raises(TypeError, match="stall_s"):
        Costs(**{**TABLES, "time": less})
    with pytest.raises(TypeError, match="stahl_s"):
        Costs(**{**TABLES, "time": {**TABLES["time"], "stahl_s": 1.0}})
