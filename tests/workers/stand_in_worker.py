"""A worker, as ``python -m workers`` makes it, with stand-in ranks in the probe program's place.

python -P stand_in_worker.py DB_URL STUDY FOLDER SCRIPT [WATCH_FD | --dry DOES]

STAND_IN_GPUS names GPUs, with commas, that the machine is said to have. A STUDY that is --serve,
--once or --drain is a service; STAND_IN_LEASE_S shortens its leases, and a third of that is the
silence after which its ranks end.
"""

import logging
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

from tuner.dryrun import DryRunner
from tuner.store import LEASE_S, open_store
from workers import service, worker
from workers.launchers.base import WATCH_FD
from workers.launchers.site import LocalSite
from workers.options import Options
from workers.placement import Device
from workers.stop import StopRequest
from workers.store_waiting import open_patiently
from workers.worker import Worker

STAND_IN = Path(__file__).parent / "stand_in_rank.py"
STAND_IN_DRY = Path(__file__).parent / "stand_in_dry.py"


ENDS = {"--serve": "stopped", "--once": "once", "--drain": "drained"}


def made_up(gpus: str) -> dict[str, Any]:
    """Options for a machine with GPUs that are not there."""
    if not gpus:
        return {}
    worker.check_machine = service.check_machine = lambda *_: False
    devices = tuple(Device(name=gpu, visible=gpu) for gpu in gpus.split(","))
    return {"site": LocalSite(find_devices=lambda: (*devices, Device(name="here/cpu")))}


def main() -> int:
    url, study, folder, script, *watch_fd = sys.argv[1:]
    logging.basicConfig(level=logging.INFO)
    lease_s = float(os.environ.get("STAND_IN_LEASE_S", LEASE_S))
    dry = watch_fd[:1] == ["--dry"] and watch_fd.pop()
    stop = StopRequest(int(watch_fd[0]) if watch_fd and not dry else None)
    stop.install()

    def argv(out: Path) -> tuple[str, ...]:
        silence_s = str(lease_s / 3)
        return (sys.executable, "-P", str(STAND_IN), str(out), WATCH_FD, silence_s, script)

    command = (sys.executable, "-P", str(STAND_IN_DRY), dry or "ok", str(Path(folder).parent))
    options = Options(
        folder=Path(folder),
        lock=Path(folder).with_suffix(".lock"),
        argv=argv,
        dry_runner=partial(DryRunner, command=command),
        guards=False,
        **made_up(os.environ.get("STAND_IN_GPUS", "")),
    )
    if study.startswith("--"):
        found = open_patiently(url, stop, create=False, lease_s=lease_s)
        if found is None:
            return service.code_of(stop)
        with found as store:
            until = service.Until(ENDS[study])
            return service.Service(store, stop=stop, until=until, options=options).run()
    with open_store(url, create=False, lease_s=lease_s) as store:
        return Worker(store, study, stop=stop, options=options).run()


sys.exit(main())
