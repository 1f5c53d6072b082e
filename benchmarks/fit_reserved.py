"""Fit what the allocator reserves and no tensor uses: ``python benchmarks/fit_reserved.py``.

The constants ``reserved_*`` of ``tuner/catalog/costs.toml`` are quantiles of one published table
(``data/fms_acceleration_memory.csv``): full fine-tunings of which both nvidia-smi's figure and
torch's allocated peak are known. From nvidia-smi's, a round figure is taken off for the context
and communicators; what is left, over the allocated peak, is the factor. It prints them beside the
catalogue's, and writes nothing.

The table's own coarseness: nvidia-smi is read once a second and averaged over the GPUs of a run,
while the allocated peak is rank 0's.

Of several ranks without FSDP1 the constants are quantiles of what torch's CUDA allocator shows
without a GPU (``results/cuda-allocator.json``), where both figures are its own. The same file says
how far dry runs and arithmetic are off, which is printed too.
"""

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import RESULTS, show

from tuner.cost.constants import default_costs

DATA = Path(__file__).parent / "data" / "fms_acceleration_memory.csv"
OUTSIDE_MIB = {True: 500.0, False: 1000.0}
"""MiB that are not the allocator's, of one rank alone and of several: the context of the catalogue
(512 MiB), and one communicator (544 MiB), rounded."""
FULL_MIB = 77_000.0
"""From here on the device (81,920 MiB) is full: the allocator gives blocks back to go on."""
QUANTILES = {"factor": 0.5, "low": 0.1, "high": 0.9}
"""The middle 80%: the value of a constant, and its ends."""


def in_catalogue(name: str) -> float:
    """The catalogue's figure of a fitted one, such as ``reserved_fsdp1_low``."""
    constant, _, end = name.rpartition("_")
    figures: tuple[float, ...] = getattr(default_costs().device, constant)
    return figures[[*QUANTILES].index(end)]


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """One fine-tuning of the table."""

    gpus: int  # ranks; with more than one they are FSDP1's
    nvidia_smi_mib: float  # most memory that nvidia-smi showed, the mean of the run's GPUs
    allocated_bytes: int  # most that `torch.cuda.max_memory_allocated` showed, on rank 0

    @property
    def alone(self) -> bool:
        """Whether there is no other rank."""
        return self.gpus == 1

    @property
    def reserved_share(self) -> float:
        """What the allocator holds over what tensors take."""
        reserved_mib = self.nvidia_smi_mib - OUTSIDE_MIB[self.alone]
        return reserved_mib * 2**20 / self.allocated_bytes


def tunings() -> list[Tuning]:
    with DATA.open() as file:
        return [
            Tuning(
                gpus=int(row["gpus"]),
                nvidia_smi_mib=float(row["nvidia_smi_mib"]),
                allocated_bytes=int(row["peak_allocated_bytes"]),
            )
            for row in csv.DictReader(file)
        ]


def quantile(values: Sequence[float], share: float) -> float:
    """The value that so large a share of the others is below."""
    return sorted(values)[int(share * len(values))]


def fitted(runs: Sequence[Tuning]) -> dict[str, float]:
    """Every constant by its name in the catalogue, not rounded."""
    found: dict[str, float] = {}
    for prefix, alone in (("reserved", True), ("reserved_fsdp1", False)):
        of = [run.reserved_share for run in usable(runs, alone=alone)]
        found |= {f"{prefix}_{end}": quantile(of, share) for end, share in QUANTILES.items()}
    return found


def usable(runs: Sequence[Tuning], *, alone: bool) -> list[Tuning]:
    """Those whose device was not full."""
    return [run for run in runs if run.alone is alone and run.nvidia_smi_mib < FULL_MIB]


def least_outside_mib(runs: Sequence[Tuning]) -> float:
    """The least that a run took beside its allocated peak, on a full device or not."""
    return min(run.nvidia_smi_mib - run.allocated_bytes / 2**20 for run in runs)


def rows(runs: Sequence[Tuning]) -> list[dict[str, Any]]:
    return [
        {"constant": name, "runs": len(usable(runs, alone="fsdp1" not in name)),
         "fit": value, "catalogue": in_catalogue(name)}
        for name, value in fitted(runs).items()
    ]  # fmt: skip


Found = Sequence[Mapping[str, Any]]


def allocator_rows() -> Found:
    """What torch's allocator showed without a GPU, of settings that ended well."""
    path = RESULTS / "cuda-allocator.json"
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return [row for row in rows if row["outcome"] == "ok"]


def of_class(rows: Found) -> dict[str, list[float]]:
    """Reserved over allocated bytes by the constants that they are fitted to."""
    found: dict[str, list[float]] = {"reserved_several": [], "reserved_checkpointed": []}
    for row in rows:
        sharded = row["sharding"] != "ddp" and row["tp_size"] == 1
        full = sharded and row["activation_checkpointing"] == "full"
        share = row["reserved_bytes"] / row["allocated_bytes"]
        found["reserved_checkpointed" if full else "reserved_several"].append(share)
    return found


def allocator_fits(rows: Found) -> list[dict[str, Any]]:
    return [
        {"constant": f"{name}_{end}", "runs": len(shares),
         "fit": quantile(shares, share), "catalogue": in_catalogue(f"{name}_{end}")}
        for name, shares in of_class(rows).items()
        for end, share in QUANTILES.items()
    ]  # fmt: skip


def over_predicted(rows: Found) -> list[dict[str, Any]]:
    """Allocated over predicted bytes, by how they were predicted."""
    found = []
    for way in ("dry_run", "arithmetic"):
        shares = [1 / (1 + row[way]["error"]) for row in rows if row[way]]
        ends = {"10%": quantile(shares, 0.1), "90%": quantile(shares, 0.9)}
        found.append(
            {"by": way, "runs": len(shares), "least": min(shares), **ends, "most": max(shares)}
        )
    return found


def main() -> None:
    runs = tunings()
    show("reserved over allocated", rows(runs))
    show("the same, torch's allocator without a GPU", allocator_fits(allocator_rows()))
    show("allocated over predicted, there", over_predicted(allocator_rows()))
    print(f"least beside the allocated peak: {least_outside_mib(runs):.0f} MiB")


if __name__ == "__main__":
    main()
