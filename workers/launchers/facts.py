"""What one node of a cluster has, as one line of JSON on standard output.

    python -P -m workers.launchers.facts FOLDER

It looks at the node that it runs on: without torch, in a tenth of a second where there is no GPU.
"""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.machine import Machine, this_machine
from workers.placement import cores_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a node has."""

    machine: Machine
    """Its GPUs, cores and memory."""
    cores: str
    """The name of its cores, as a device."""
    sees_folder: bool
    """Whether the probes' folder is there too."""

    @property
    def devices(self) -> tuple[str, ...]:
        """The names of all of its devices (:class:`workers.placement.Device`)."""
        return (*(gpu.uuid for gpu in self.machine.gpus), self.cores)

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "machine": self.machine.as_dict(),
            "cores": self.cores,
            "sees_folder": self.sees_folder,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Facts":
        """The reverse of :meth:`as_dict`."""
        return cls(**{**values, "machine": Machine.from_dict(values["machine"])})


def facts_here(folder: Path | None = None) -> Facts:
    """What the machine has that this runs on.

    Args:
        folder: that is looked for.
    """
    machine = this_machine()
    return Facts(
        machine=machine,
        cores=cores_name(machine.name),
        sees_folder=folder is not None and folder.is_dir(),
    )


def main() -> int:
    """Tell them, and what Slurm calls this node."""
    found = facts_here(Path(sys.argv[1]))
    print(json.dumps({"node": os.environ["SLURMD_NODENAME"], **found.as_dict()}))  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
