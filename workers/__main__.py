"""Work at a study until it is answered, or serve any study.

    python -P -m workers --db URL --study ID [--queued-only] [--fidelity F] [--cold] [--watch-fd N]
    python -P -m workers --db URL --serve [--pool LABEL]... [--name NAME] [--once | --drain]
    python -P -m workers --db URL --guard [--watch-fd N]

    [--launcher local|slurm|ray] [--ray HOST:PORT] [--probes FOLDER] [--probe-deadline SECONDS]

Ranks are started on this machine, as steps of the Slurm allocation that the worker is in, or by
Ray; by default by Slurm in an allocation of several nodes.

The second takes open studies, those asked first before others, and goes on until it is stopped; it
waits for a database that is away, but with --once. The third trains the replicas of a usual model
for every knob, and keeps their checks.

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

from tuner.core.launcher import LauncherName, default_launcher
from tuner.core.measurement import Fidelity
from tuner.store import open_store
from workers.executor import PROBE_DEADLINE_S, WorkerOptions
from workers.launchers.site import open_site
from workers.measuring.records import probes_folder
from workers.replicas import check_knobs_here
from workers.serve import Service, Until, exit_code, open_when_reachable
from workers.stop import INTERRUPTED, StopRequest, open_fd, run_command
from workers.worker import Worker

log = logging.getLogger("workers")


def main() -> int:
    command = _command_line()

    def work(stop: StopRequest) -> int:
        if command.guard:
            with open_store(command.db, create=False) as store:
                return 0 if check_knobs_here(store, stop.wait) else INTERRUPTED
        return (_serve if command.serve else _work)(stop, command)

    return run_command(work, log, command.watch_fd, is_service=command.serve)


def _work(stop: StopRequest, command: argparse.Namespace) -> int:
    with open_store(command.db, create=False) as store, _options(stop, command) as options:
        fidelity = Fidelity(command.fidelity) if command.fidelity else None
        options = replace(options, queued_only=command.queued_only, fidelity=fidelity)
        return Worker(store, command.study, stop=stop, options=options).run()


@contextmanager
def _options(stop: StopRequest, command: argparse.Namespace) -> Iterator[WorkerOptions]:
    launcher = LauncherName(command.launcher) if command.launcher else default_launcher()
    folder = probes_folder(command.probes)
    with open_site(launcher, stop, folder, ray=command.ray) as site:
        yield WorkerOptions(
            site=site, folder=folder, cold=command.cold, deadline_s=command.probe_deadline
        )


def _serve(stop: StopRequest, command: argparse.Namespace) -> int:
    until = Until.ONCE if command.once else Until.DRAINED if command.drain else Until.STOPPED
    with _options(stop, command) as options:
        if until is Until.ONCE:
            store = open_store(command.db)
        else:  # it is waited for, as it is when the database goes away later
            found = open_when_reachable(command.db, stop)
            if found is None:
                return exit_code(stop)
            store = found
        with store:
            return Service(
                store,
                stop=stop,
                pools=tuple(command.pool),
                name=command.name,
                until=until,
                options=options,
            ).run()


def _command_line() -> argparse.Namespace:
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
