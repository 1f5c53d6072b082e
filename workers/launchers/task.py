"""One rank as the child of whatever a cluster's manager starts on a node.

    python -P -m workers.launchers.task DIR/job.json

Its rank is SLURM_PROCID. The supervisor's bytes come through standard input, which the manager
relays: :data:`ALIVE` once a second, :data:`STOP` to end the rank; the end of input says that the
supervisor is gone. How the rank ended stands in ``rank-NNNNN.end.json`` afterwards.
"""

import argparse
import json
import os
import select
import signal
import sys
from pathlib import Path

from workers.launchers.base import Job, RankEnd, RankProcess, end_ranks, rank_environment
from workers.measuring.records import end_path, log_path, write_json

# From the supervisor: it is there.
ALIVE = b"."
# From the supervisor: end the rank.
STOP = b"s"
# Between two looks at the rank.
POLL_S = 0.05
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class RankTask(RankProcess):
    """A rank that a manager has started us for; its environment is of this process's."""

    def __init__(self, job: Job, rank: int, *, address: str = "") -> None:
        environment = rank_environment(job, rank, os.environ, address=address)
        if job.device == "cuda" and not job.visible:
            own = first_visible(environment.get("CUDA_VISIBLE_DEVICES"), job.gpus_per_node)
            environment["CUDA_VISIBLE_DEVICES"] = own
        super().__init__(job, rank, environment)

    def start(self) -> None:
        """Starts the rank. Why it could not be started stands in its log, and it has ended then."""
        try:
            super().start()
        except OSError as error:
            log_path(self.job.directory, self._rank).write_text(f"{error}\n", encoding="utf-8")
            self.kill()


def first_visible(visible: str | None, count: int) -> str:
    """CUDA_VISIBLE_DEVICES of the first GPUs of those that a task's manager shows it."""
    shown = map(str, range(count)) if visible is None else visible.split(",")
    return ",".join(list(shown)[:count])


def read_end(directory: Path, rank: int) -> RankEnd | None:
    """How a rank ended; ``None`` until its task has told. Raises ValueError: it cannot be read."""
    path = end_path(directory, rank)
    try:
        return RankEnd.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path.name}: {error!r}") from error


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m workers.launchers.task", description=__doc__)
    parser.add_argument("job", type=Path, help="the job, as its launcher has written it")
    values = json.loads(parser.parse_args().job.read_text(encoding="utf-8"))
    job = Job.from_dict(values["job"])
    rank = int(os.environ["SLURM_PROCID"])
    local = int(os.environ["SLURM_LOCALID"])
    if local != rank % job.ranks_per_node:
        sys.exit(f"rank {rank} was started as number {local} of its node")
    # Its own: only rank 0's is used, whatever the order in which Slurm has the nodes.
    address = values["addresses"].get(os.environ["SLURMD_NODENAME"], "")
    task, feed = RankTask(job, rank, address=address), sys.stdin.fileno()
    noted: list[int] = []
    for number in SIGNALS:
        signal.signal(number, lambda number, frame: noted.append(number))
    news = select.poll()
    news.register(feed, select.POLLIN)
    task.start()
    while (end := task.poll()) is None:
        said = os.read(feed, 4096) if news.poll(POLL_S * 1000) else None
        if noted or said == b"" or STOP in (said or b""):
            end_ranks([task])  # a signal has come, the supervisor is gone, or it says so
        elif said:
            task.feed()
    write_json(end_path(job.directory, rank), end.as_dict())
    return 0


if __name__ == "__main__":
    sys.exit(main())
