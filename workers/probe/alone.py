"""The notes of rank 0 when it runs alone: computing by phase, and every step's collectives.

Nothing is sent, so a timed step is computing, and the collectives that it would have waited for
are priced by whoever started the probe. A gather and a scatter still copy on this device, in the
place of what they would have received; where the step waits for that, it is timed by itself, to
be taken off.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch

from workers.probe.collectives import Call, Overlap, overlaps, summarize
from workers.probe.device import Device
from workers.probe.giving_up import computing
from workers.probe.group import gather_into, group_of_name, reduce_scatter_into

# Copies of one size that are timed; the first warms up, and the median of the others counts.
TIMES = 5
# Bytes of copies in pieces, at least: the launch of smaller ones would be what is timed.
LEAST_BYTES = 2**20


class StepClock:
    """Seconds of each phase of one step, by marks on the device that nothing waits for."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._marks: list[tuple[str, Any]] = []

    def enter(self, phase: str) -> None:
        """A phase begins, and the one before ends."""
        self._marks.append((phase, self._device.mark()))

    def stop(self) -> dict[str, float]:
        """End the last phase; seconds of each, over all micro-batches."""
        self.enter("")
        seconds: defaultdict[str, float] = defaultdict(float)
        for (phase, begin), (_, end) in zip(self._marks, self._marks[1:], strict=False):
            seconds[phase] += self._device.seconds_between(begin, end)
        return dict(seconds)


@dataclass(slots=True, kw_only=True)
class Alone:
    """Findings of a rank without peers."""

    device: Device  # its device
    axes: Mapping[str, str]  # name of the mesh axis of each process group
    seconds: dict[int, list[dict[str, float]]] = field(default_factory=dict)
    """Seconds of each phase in each timed step, by accumulation count."""
    calls: dict[int, list[Call]] = field(default_factory=dict)
    """The collectives of one step of each accumulation count."""
    _left_out: str = ""
    _known: dict[tuple[str, str, int, torch.dtype], float] = field(default_factory=dict)

    def computing_s(self) -> dict[int, list[float]]:
        """Seconds that each timed step computes, by accumulation count."""
        copies = self._copies_s()
        return {
            count: [sum(computing(step, copies[count]).values()) for step in steps]
            for count, steps in self.seconds.items()
        }

    def rows(self, count: int) -> list[dict[str, object]]:
        """The collectives of a step by kind, with what hides them."""
        calls = self.calls[count]
        return summarize(calls, self.axes, overlaps(calls, self.axes))

    def values(self) -> dict[str, Any]:
        return {
            "phase_times_s": {str(count): steps for count, steps in self.seconds.items()},
            "copies_s": {str(count): copies for count, copies in self._copies_s().items()},
            "collectives": {str(count): self.rows(count) for count in self.calls},
            "copies_left_out": self._left_out,
        }

    def _copies_s(self) -> dict[int, dict[str, float]]:
        """Seconds that a step of each count waits for copies, by phase."""
        found: dict[int, dict[str, float]] = {}
        for count, calls in self.calls.items():
            seconds: dict[str, float] = defaultdict(float)
            for call, overlap in zip(calls, overlaps(calls, self.axes), strict=True):
                if call.op not in ("all_gather", "reduce_scatter"):
                    continue
                # hidden copies run on a stream of their own; a CPU has one line only
                if overlap is not Overlap.EXPOSED and self.device.type != "cpu":
                    continue
                kind = call.op, call.group, call.bytes, call.dtype
                if kind not in self._known:
                    self._known[kind] = self._copy_s(call)
                seconds[call.phase] += self._known[kind]
            found[count] = dict(seconds)
        return found

    def _copy_s(self, call: Call) -> float:
        """Seconds of a call's copies: in pieces where there is no memory for more."""
        # The steps' tensors are there, and whatever their allocations left in pieces; a probe whose
        # steps had memory enough must not fail for want of it here. Without room for the smallest
        # piece nothing is taken off: the time of computing is too long then, and says so.
        ranks, pieces = group_of_name(call.group).size(), 1
        while True:
            each = -(-call.bytes // ranks // pieces)
            try:
                return pieces * self._piece_s(call, each)
            except (RuntimeError, MemoryError) as error:
                if self.device.out_of_memory(error) is None:
                    raise
                if each * ranks <= LEAST_BYTES:
                    self._left_out = f"no memory was left to time {call.op} of {call.bytes} bytes"
                    return 0.0
            pieces *= 2

    def _piece_s(self, call: Call, each: int) -> float:
        """Seconds of a gather or scatter of ``each`` bytes of every rank."""
        # a function of its own, so that tensors of a piece that failed are gone before the next
        group = group_of_name(call.group)
        each = -(-each // call.dtype.itemsize)
        # in the step's dtype: elements, and not bytes, are what a kernel copies
        whole, part = (
            torch.empty(size, dtype=call.dtype, device=self.device.torch_device)
            for size in (each * group.size(), each)
        )

        def copy() -> None:
            if call.op == "all_gather":
                gather_into(whole, part, group=group)
            else:
                reduce_scatter_into(part, whole, group=group)

        return median([self.device.seconds_of(copy) for _ in range(TIMES)][1:])
