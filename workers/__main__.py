"""Work at a study until it is answered, or serve any study.

    python -P -m workers --db URL --study ID [--queued-only] [--fidelity F] [--cold] [--watch-fd N]
    python -P -m workers --db URL --serve [--pool LABEL]... [--name NAME] [--once | --drain]
    python -P -m workers --db URL --guard [--watch-fd N]

    [--launcher local|slurm|ray] [--ray HOST:PORT] [--probes FOLDER] [--probe-deadline SECONDS]

Ranks are started on this machine, as steps of the Slurm allocation that the worker is in, or by
Ray; by default by Slurm in an allocation of several nodes, but for a script, which is probed on
this machine.

The second takes open studies, those asked first before others, and goes on until it is stopped; it
waits for a database that is away, but with --once. The third trains the twins of a usual model for
every knob, and keeps their verdicts.

Exit codes: 0 nothing more to do (the study's state says why), 1 it could not go on, 2 usage,
130 a stop was requested (Ctrl-C, SIGTERM, or the starting command is gone): the study is queued.
One that serves ends with 0 after SIGTERM.
"""

import argparse
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tuner.launcher import LauncherName
from tuner.measurement import Fidelity
from tuner.store import open_store
from workers.command import run_command
from workers.guard import check_knobs_here
from workers.launchers.sites import default_launcher, open_site
from workers.measuring.folders import probes_folder
from workers.options import PROBE_DEADLINE_S, Options
from workers.service import Service, Until, code_of
from workers.stop import StopRequest, open_fd
from workers.store_waiting import open_patiently
from workers.worker import INTERRUPTED, Worker

log = logging.getLogger("workers")


def main() -> int:
    """Run a worker; the exit code."""
    options = _options()

    def work(stop: StopRequest) -> int:
        if options.guard:
            with open_store(options.db, create=False) as store:
                done = check_knobs_here(store, stop.wait)
                return 0 if done else INTERRUPTED
        return (_serve if options.serve else _work)(stop, options)

    return run_command(work, log, options.watch_fd, is_service=options.serve)


def _work(stop: StopRequest, options: argparse.Namespace) -> int:
    with open_store(options.db, create=False) as store:
        is_script = store.study(options.study).question.script is not None
        usual = LauncherName.LOCAL if is_script else default_launcher()
        with _plan(stop, options, usual) as plan:
            fidelity = Fidelity(options.fidelity) if options.fidelity else None
            plan = replace(plan, queued_only=options.queued_only, fidelity=fidelity)
            return Worker(store, options.study, stop=stop, options=plan).run()


@contextmanager
def _plan(stop: StopRequest, options: argparse.Namespace, usual: LauncherName) -> Iterator[Options]:
    """How and where probes are run, by the ``usual`` launcher unless one is stated."""
    launcher = LauncherName(options.launcher) if options.launcher else usual
    folder = probes_folder(options.probes)
    with open_site(launcher, stop, folder, ray=options.ray) as site:
        yield Options(
            site=site, folder=folder, cold=options.cold, deadline_s=options.probe_deadline
        )


def _serve(stop: StopRequest, options: argparse.Namespace) -> int:
    with _plan(stop, options, default_launcher()) as plan:
        return _served(stop, options, plan)


def _served(stop: StopRequest, options: argparse.Namespace, plan: Options) -> int:
    until = Until.ONCE if options.once else Until.DRAINED if options.drain else Until.STOPPED
    waits = until is not Until.ONCE  # as it does when the database goes away later
    store = open_patiently(options.db, stop) if waits else open_store(options.db)
    if store is None:
        return code_of(stop)
    with store:
        service = Service(
            store,
            stop=stop,
            pools=tuple(options.pool),
            name=options.name,
            until=until,
            options=plan,
        )
        return service.run()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m workers", description=__doc__)
    parser.add_argument("--db", help="address of the database; the user's own by default")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--study", help="the study's id")
    what.add_argument("--guard", action="store_true", help="check every knob with small models")
    what.add_argument("--serve", action="store_true", help="take studies until stopped")
    parser.add_argument(
        "--pool", action="append", default=[], help="serve the studies that name this pool too"
    )
    parser.add_argument("--name", default="", help="what people see; else host and process number")
    ends = parser.add_mutually_exclusive_group()
    ends.add_argument("--once", action="store_true", help="serve one study, and end")
    ends.add_argument("--drain", action="store_true", help="end when no study is left to serve")
    parser.add_argument(
        "--queued-only", action="store_true", help="run the probes that are queued; plan none"
    )
    parser.add_argument(
        "--fidelity",
        choices=list(map(str, Fidelity)),
        help="run probes of this one; by default of the study's",
    )
    parser.add_argument(
        "--launcher",
        choices=list(map(str, LauncherName)),
        help="what starts ranks; by default slurm in an allocation of several nodes, else local",
    )
    parser.add_argument("--ray", default="", help="address of the Ray cluster of --launcher ray")
    parser.add_argument(
        "--probes", type=Path, help="folder for the files of probes; in the user's cache by default"
    )
    parser.add_argument(
        "--probe-deadline", type=float, default=PROBE_DEADLINE_S, help="seconds for one probe"
    )
    parser.add_argument("--cold", action="store_true", help="start ranks anew for every probe")
    parser.add_argument(
        "--watch-fd", type=open_fd, help="stop when this pipe's other end is closed"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
