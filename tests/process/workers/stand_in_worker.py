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

from tuner.core import lease
from tuner.dryrun import DryRunner
from tuner.store import open_store
from workers import executor, serve
from workers.devices import Device
from workers.executor import WorkerOptions
from workers.launchers.base import WATCH_FD
from workers.launchers.site import LocalSite
from workers.serve import open_when_reachable
from workers.stop import StopRequest
from workers.worker import Worker

STAND_IN = Path(__file__).parent / "stand_in_rank.py"
STAND_IN_DRY = Path(__file__).parent / "stand_in_dry.py"


ENDS = {"--serve": "stopped", "--once": "once", "--drain": "drained"}


def made_up(gpus):
    """WorkerOptions for a machine with GPUs that are not there."""
    if not gpus:
        return {}
    executor.check_machine = serve.check_machine = lambda *_: False
    devices = tuple(Device(name=gpu, visible=gpu) for gpu in gpus.split(","))
    return {"site": LocalSite(find_devices=lambda: (*devices, Device(name="here/cpu")))}


def main():
    url, study, folder, script, *watch_fd = sys.argv[1:]
    logging.basicConfig(level=logging.INFO)
    lease.LEASE_S = float(os.environ.get("STAND_IN_LEASE_S", lease.LEASE_S))
    dry = watch_fd[:1] == ["--dry"] and watch_fd.pop()
    stop = StopRequest(int(watch_fd[0]) if watch_fd and not dry else None)
    stop.install()

    def argv(out):
        silence_s = str(lease.LEASE_S / 3)
        return (sys.executable, "-P", str(STAND_IN), str(out), WATCH_FD, silence_s, script)

    command = (sys.executable, "-P", str(STAND_IN_DRY), dry or "ok", str(Path(folder).parent))
    options = WorkerOptions(
        folder=Path(folder),
        lock=Path(folder).with_suffix(".lock"),
        argv=argv,
        dry_runner=partial(DryRunner, command=command),
        guards=False,
        **made_up(os.environ.get("STAND_IN_GPUS", "")),
    )
    if study.startswith("--"):
        found = open_when_reachable(url, stop, create=False)
        if found is None:
            return serve.exit_code(stop)
        with found as store:
            until = serve.Until(ENDS[study])
            return serve.Service(store, stop=stop, until=until, options=options).run()
    with open_store(url, create=False) as store:
        return Worker(store, study, stop=stop, options=options).run()


sys.exit(main())
