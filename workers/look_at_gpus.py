"""Tells what processes find on this machine's GPUs, as one line of JSON on standard output.

    python -P -m workers.look_at_gpus

``gpus`` is what each found (``workers/probe/check.py``), ``why_unusable`` the reason why no probe
can be run on them, and ``in_use`` whether a worker's probes run there, which are not disturbed.
"""

import json
import sys
import time

from tuner.errors import TunerError
from workers.devices import DeviceLocks, default_lock_path, devices_here, first_gpus
from workers.measuring.ranks import Kind, WarmRanks
from workers.measuring.records import default_probes_folder


def main() -> int:
    devices = devices_here()
    gpus = first_gpus(devices, len(devices))
    # probes on the CPU go on beside: a look takes no time of theirs that is worth waiting for
    locks = DeviceLocks(default_lock_path(), [one.name for one in devices if one.visible])
    told: dict[str, object] = {"gpus": [], "why_unusable": "", "in_use": False}
    try:
        if gpus and not locks.acquire_at_once():
            told["in_use"] = True
        elif gpus:
            kind = Kind(ranks=len(gpus), world_size=len(gpus), device="cuda", visible=gpus)
            with WarmRanks(folder=default_probes_folder()) as ranks:
                found = ranks.ask(kind, {"check": "cuda"}, _pause)
            assert found is not None
            gpus_seen = [record.get("hardware", {}) for record in found.records]
            told |= {"gpus": gpus_seen, "why_unusable": found.why_unusable}
    except TunerError as error:
        told["why_unusable"] = str(error)
    finally:
        locks.release()
    print(json.dumps(told))  # noqa: T201
    return 0


def _pause(seconds: float) -> str:
    """Nothing but its own deadline ends a look."""
    time.sleep(seconds)
    return ""


if __name__ == "__main__":
    sys.exit(main())
