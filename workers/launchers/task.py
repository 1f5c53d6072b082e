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
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from workers.launchers.base import (
    Job,
    RankEnd,
    exit_code,
    oom_kills,
    rank_environment,
    start_process,
)
from workers.measuring.records import end_path, log_path, write_json

# From the supervisor: it is there.
ALIVE = b"."
# From the supervisor: end the rank.
STOP = b"s"
# Between two looks at the rank.
POLL_S = 0.05
# Code of a rank whose program could not be started, as shells have it.
NOT_STARTED = 127
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class RankTask:
    """One rank of a job as a child of this process, in a process group of its own."""

    def __init__(self, job: Job, rank: int, *, address: str = "") -> None:
        self._job = job
        self._rank = rank
        self._address = address
        self._oom_kills = oom_kills()
        self._process: subprocess.Popen[bytes] | None = None
        self._feed: int | None = None
        self._end: RankEnd | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Starts the rank. Why it could not be started stands in its log, and it has ended then."""
        job = self._job
        environment = rank_environment(job, self._rank, os.environ, address=self._address)
        if job.device == "cuda" and not job.visible:
            own = first_visible(environment.get("CUDA_VISIBLE_DEVICES"), job.gpus_per_node)
            environment["CUDA_VISIBLE_DEVICES"] = own
        try:
            self._process, self._feed = start_process(job, self._rank, environment)
        except OSError as error:
            log_path(job.directory, self._rank).write_text(f"{error}\n", encoding="utf-8")
            self._close(stopped=False)

    def feed(self) -> None:
        if self._feed is not None:
            with suppress(BrokenPipeError, BlockingIOError):  # ended, or stopped for a day
                os.write(self._feed, ALIVE)

    def poll(self) -> RankEnd | None:
        """How the rank ended; ``None`` while it runs. Nothing of it is left afterwards."""
        process = self._process if self._end is None else None
        if process is not None and exit_code(process.pid) is not None:
            self._close(stopped=False)
        return self._end

    def stop(self) -> RankEnd:
        """Ends the rank, if it runs; how it ended. Nothing of it is left then."""
        if end := self.poll():
            return end
        assert self._process is not None, "it was not started"
        self._signal(signal.SIGTERM)
        until = time.monotonic() + self._job.term_grace_s
        while exit_code(self._process.pid) is None and time.monotonic() < until:
            time.sleep(0.02)
        return self._close(stopped=True)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _close(self, *, stopped: bool) -> RankEnd:
        code = NOT_STARTED
        if self._process is not None:
            self._signal(signal.SIGKILL)  # while its number is still its own
            code = self._process.wait()
        if self._feed is not None:
            os.close(self._feed)
            self._feed = None
        end = RankEnd(rank=self._rank, code=code, ended_at=time.time(), stopped=stopped)
        values = {
            "code": end.code,
            "ended_at": end.ended_at,
            "stopped": end.stopped,
            # of processes that its node's kernel killed for memory meanwhile
            "host_oom_kills": max(0, oom_kills() - self._oom_kills),
        }
        write_json(end_path(self._job.directory, self._rank), values)
        self._end = end
        return end


def first_visible(visible: str | None, count: int) -> str:
    """CUDA_VISIBLE_DEVICES of the first GPUs of those that a task's manager shows it."""
    shown = map(str, range(count)) if visible is None else visible.split(",")
    return ",".join(list(shown)[:count])


def read_end(directory: Path, rank: int) -> tuple[RankEnd, int] | None:
    """How a rank ended, and its node's kills for memory meanwhile; ``None`` until it is told."""
    try:
        values = json.loads(end_path(directory, rank).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    try:
        code, at, stopped = values["code"], values["ended_at"], values["stopped"]
        end = RankEnd(rank=rank, code=int(code), ended_at=float(at), stopped=bool(stopped))
        return end, int(values["host_oom_kills"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"{end_path(directory, rank).name}: {error!r}") from error


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
    while task.poll() is None:
        said = os.read(feed, 4096) if news.poll(POLL_S * 1000) else None
        if noted or said == b"" or STOP in (said or b""):
            task.stop()  # a signal has come, the supervisor is gone, or it says so
        elif said:
            task.feed()
    return 0


if __name__ == "__main__":
    sys.exit(main())
