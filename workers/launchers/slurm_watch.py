"""One look at a Slurm allocation every few seconds, for all who want to know of it."""

import logging
import threading
import time
from collections.abc import Mapping
from typing import Self

from tuner.errors import ProbeError
from workers.launchers.slurm_query import JobState, NodeState, NoJobError, job_state, node_states
from workers.stop import StopRequest

POLL_S = 5.0
"""Between two looks: a controller serves thousands of jobs."""
LEAVE_S = 30.0
"""Before the end of an allocation's time at which a worker gives its probes back and leaves."""

log = logging.getLogger(__name__)


class Watch:
    """The state of the allocation that this process is in; asks for a stop when that is over.

    A context: the looks are a thread's.
    """

    def __init__(self, job_id: str, stop: StopRequest, *, poll_s: float = POLL_S) -> None:
        """Look at the allocation once.

        Args:
            job_id: of the allocation.
            stop: is requested when the allocation is over, or its time nearly is.
            poll_s: seconds between two looks.

        Raises:
            ProbeError: Slurm does not answer, or the allocation is over.
        """
        self.name = f"Slurm job {job_id}"
        self._job_id = job_id
        self._stop = stop
        self._poll_s = poll_s
        self._done = threading.Event()
        self._looking = threading.Lock()
        self._thread = threading.Thread(target=self._keep, daemon=True, name="slurm")
        self._job: JobState = job_state(job_id)
        if self._job.is_over:
            raise ProbeError(f"{self.name} is {self._job.state}")
        found = node_states(self._job.nodes)
        self._nodes = {name: node for name, node in found.items() if not node.is_lost}
        self._told = self._gone = ""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()

    @property
    def nodes(self) -> tuple[NodeState, ...]:
        """Nodes of the allocation that are not lost, rank 0's first."""
        return tuple(self._nodes.values())

    @property
    def left_s(self) -> float:
        """Seconds until this worker has to leave; infinite without a time limit."""
        return self._job.ends_at - LEAVE_S - time.time()

    def lost(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Those of these nodes on which nothing runs any more, as far as Slurm has found out."""
        return tuple(name for name in names if name not in self._nodes)

    def give_up(self, why: str) -> None:
        """Have the worker end: the allocation is of no use to it any more."""
        self._stop.request(why)

    def look(self) -> None:
        """Ask Slurm now; what it says is told to whoever must know. Trouble is logged, once."""
        with self._looking:
            try:
                self._job = job_state(self._job_id)
                found = node_states(self._job.nodes) if self._job.nodes else {}
            except NoJobError as error:
                self._gone = str(error)
            except ProbeError as error:
                self._tell(str(error))
            else:
                self._told = ""
                self._note(found)
        self.end_if_over()

    def end_if_over(self) -> str:
        """Ask the worker to end if the allocation is over: why it is."""
        if why := self.over:
            self._stop.request(why)
        return why

    @property
    def over(self) -> str:
        """Why nothing is to be run in the allocation any more; empty while something is."""
        if self._gone:
            return self._gone
        if self._job.is_over:
            return f"{self.name} is {self._job.state}"
        return f"the time of {self.name} is nearly over" if self.left_s <= 0 else ""

    def _note(self, found: Mapping[str, NodeState]) -> None:
        """Keep the nodes that are still there: one that went down is not the job's any more."""
        for name in self._nodes:
            if name not in found:
                log.warning("node %s is not of %s any more", name, self.name)
            elif found[name].is_lost:
                log.warning("node %s of %s is %s", name, self.name, found[name].state)
        self._nodes = {
            name: node for name, node in found.items() if name in self._nodes and not node.is_lost
        }

    def _tell(self, trouble: str) -> None:
        if trouble != self._told:
            log.warning("%s", trouble)
        self._told = trouble

    def _keep(self) -> None:
        while not self._done.wait(min(self._poll_s, max(0.1, self.left_s + 0.1))):
            self.look()
