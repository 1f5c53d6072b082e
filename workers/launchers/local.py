"""Ranks as processes of this machine, started directly, each in a process group of its own."""

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from workers.launchers.base import (
    RENDEZVOUS,
    SILENCE_S,
    WATCH_FD,
    Job,
    RankEnd,
    RankProcess,
    SupervisedRun,
    end_ranks,
    rank_environment,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalLauncher:
    """Starts ranks on this machine."""

    inherited: Mapping[str, str] = field(default_factory=lambda: os.environ)
    """The environment of which ranks get what may pass; by default this process's."""

    def start(self, job: Job) -> "LocalRun":
        assert job.nodes == 1, job.nodes
        run = LocalRun(job)
        try:
            for number in range(job.ranks):
                rank = RankProcess(job, number, rank_environment(job, number, self.inherited))
                rank.start()
                run.ranks.append(rank)
        except BaseException:
            run.stop()
            raise
        return run


class LocalRun(SupervisedRun):
    """Ranks of one job on this machine."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.ranks: list[RankProcess] = []

    def feed(self) -> None:
        for rank in self.ranks:
            rank.feed()

    def look(self) -> Iterator[RankEnd]:
        return (end for rank in self.ranks if (end := rank.poll()) is not None)

    def stop(self) -> list[RankEnd]:
        return end_ranks(self.ranks)


def series_argv(directory: Path) -> tuple[str, ...]:
    """The command of every rank of the probes that are ordered in ``directory``, one by one."""
    program = (sys.executable, "-P", "-m", "workers.probe", "--out", str(directory))
    watch = ("--watch-fd", WATCH_FD, "--silence-s", f"{SILENCE_S:g}")
    return (*program, "--rendezvous", RENDEZVOUS, *watch)
