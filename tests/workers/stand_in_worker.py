"""A worker, as ``python -m workers`` makes it, with stand-in ranks in the probe program's place.

python -P stand_in_worker.py DB_URL STUDY FOLDER SCRIPT [WATCH_FD | --dry DOES]
"""

import logging
import sys
from functools import partial
from pathlib import Path

from tuner.dryrun import DryRunner
from tuner.store import open_store
from workers.launchers.base import WATCH_FD
from workers.options import Options
from workers.stop import StopRequest
from workers.worker import Worker

STAND_IN = Path(__file__).parent / "stand_in_rank.py"
STAND_IN_DRY = Path(__file__).parent / "stand_in_dry.py"


def main() -> int:
    url, study, folder, script, *watch_fd = sys.argv[1:]
    logging.basicConfig(level=logging.INFO)
    dry = watch_fd[:1] == ["--dry"] and watch_fd.pop()
    stop = StopRequest(int(watch_fd[0]) if watch_fd and not dry else None)
    stop.install()

    def argv(out: Path) -> tuple[str, ...]:
        return (sys.executable, "-P", str(STAND_IN), str(out), WATCH_FD, "20", script)

    command = (sys.executable, "-P", str(STAND_IN_DRY), dry or "ok", str(Path(folder).parent))
    options = Options(
        folder=Path(folder),
        lock=Path(folder).with_suffix(".lock"),
        argv=argv,
        dry_runner=partial(DryRunner, command=command),
        guards=False,
    )
    with open_store(url, create=False) as store:
        return Worker(store, study, stop=stop, options=options).run()


sys.exit(main())
