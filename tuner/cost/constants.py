"""The cost model's constants, read from ``catalog/costs.toml``, which names their sources."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Constants by table. Units are in their names, or said beside them in the file."""

    memory: Mapping[str, float]
    """Bytes per parameter, token and logit of nanotron's step."""
    device: Mapping[str, float]
    """What the device holds beside tensors."""
    time: Mapping[str, float]
    """Efficiencies, latencies and what is hidden."""
    calibrated: bool = False
    """Whether rates are those of the devices themselves, measured: see ``calibration.py``."""


@cache
def default_costs() -> Costs:
    """The catalogue's constants. The file is read once."""
    text = files("tuner.catalog").joinpath("costs.toml").read_text(encoding="utf-8")
    return Costs(**tomllib.loads(text))
