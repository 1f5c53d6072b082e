"""All that is known of one run of a probe, made into its measurement.

The outcome follows from the ranks' records, their exit signals and why the run ended; text is
for people only. One failure makes others: a rank whose peer is gone fails in a collective, or
hangs in it. So the earliest failure is the outcome, among those that are causes by their nature
(:func:`_causality`), and a communication error is it only when nothing else happened.
"""

import math
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import takewhile
from typing import Any

from tuner.core.measurement import RAN, Findings, Measurement, Memory, Outcome
from tuner.text import size_text
from workers.launchers.base import Ended, RankEnd, Why
from workers.measuring.records import BadRecord, RankRecord
from workers.probe.orders import SUPERVISOR_GONE

# What no failure of another rank brings about.
CAUSES = frozenset(
    {Outcome.OOM, Outcome.HOST_OOM, Outcome.DEVICE_LOST, Outcome.NON_FINITE, Outcome.INVALID}
)
# Ends from outside of the ranks. One rank's own cause that was recorded before comes first.
LOST = {Why.NODE_LOST: Outcome.DEVICE_LOST, Why.TAKEN_AWAY: Outcome.CRASHED}
# Throttle reasons that are the node's doing. A power cap is the rule under load, and hw_slowdown
# also appears whenever clocks change (nvml.h).
SLOWED_BY = ("hw_thermal_slowdown", "sw_thermal_slowdown", "hw_power_brake_slowdown")
# Part of the fastest rank's SM clock by which the slowest's may be lower without a note.
CLOCK_SPREAD = 0.05
# Characters; the whole message is in the log's tail.
LONGEST_DETAIL = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failure:
    rank: int
    outcome: Outcome
    at: float
    detail: str
    signal: int = 0


def merge(
    ended: Ended,
    records: Sequence[RankRecord | BadRecord],
    log_tails: Mapping[int, str],
    *,
    deadline_s: float,
) -> Measurement:
    """The measurement of a probe that is over."""
    assert len(records) == len(ended.ranks), (len(records), len(ended.ranks))
    known = [record for record in records if isinstance(record, RankRecord)]
    outcome, detail, guilty = _outcome(ended, records, known, deadline_s)
    # the findings of one rank are told for all: of the one that failed, or the first
    evidence = next((r for r in known if r.rank == guilty), known[0] if known else None)
    complete = outcome in RAN or outcome is Outcome.WRONG_RESULT
    line = " ".join(detail.split())
    found: dict[str, Any] = {
        "outcome": outcome,
        "detail": line if len(line) <= LONGEST_DETAIL else line[: LONGEST_DETAIL - 3] + "...",
        "phase": "" if complete else next((r.phase for r in known if r.rank == guilty), ""),
        "lost_devices": _lost_devices(ended, known) if outcome is Outcome.DEVICE_LOST else (),
        "log_tails": {} if outcome in RAN else dict(log_tails),
        "wall_s": ended.wall_s,
        "device_s": ended.wall_s * len(ended.ranks),
    }
    if complete:
        found |= {
            "memory": _worst_memory([r.memory for r in known if r.memory is not None]),
            "step_times_s": {
                count: tuple(map(max, zip(*(r.step_times_s[count] for r in known), strict=True)))
                for count in known[0].step_times_s
            },
            "notes": tuple(_clock_notes({r.rank: r.hardware.get("clocks", {}) for r in known})),
        }
    if evidence is not None:
        found |= {one.name: getattr(evidence, one.name) for one in fields(Findings)}
        for name in ("losses", "gradient_norms"):
            found[name] = tuple(takewhile(math.isfinite, getattr(evidence, name)))
        if outcome is Outcome.OOM and evidence.oom is not None:
            found["oom"] = replace(evidence.oom, rank=evidence.rank)
    return Measurement(**found)


def _outcome(
    ended: Ended,
    records: Sequence[RankRecord | BadRecord],
    known: Sequence[RankRecord],
    deadline_s: float,
) -> tuple[Outcome, str, int]:
    """The outcome, its detail, and the rank that decided it."""
    if ended.why is Why.CANCELLED:
        return Outcome.CANCELLED, f"cancelled after {ended.wall_s:.1f} s", 0
    failures = [
        failure
        for end, record in zip(ended.ranks, records, strict=True)
        if (failure := _failure(end, record, ended)) is not None
    ]
    if ended.why in LOST and not any(failure.outcome in CAUSES for failure in failures):
        return LOST[ended.why], ended.detail, 0
    if failures:
        first = min(failures, key=_causality)
        others = [failure.rank for failure in failures if failure is not first]
        more = f" ({_ranks(others)} failed too)" if others else ""
        return first.outcome, first.detail + more, first.rank
    if len(known) < len(records):
        assert ended.why is Why.DEADLINE, "a rank without a record failed, or was stopped"
        late = [end.rank for end, record in zip(ended.ranks, records, strict=True) if end.stopped]
        return Outcome.TIMEOUT, f"{_ranks(late)} not done after {deadline_s:.0f} s", late[0]
    return _agreed(known)


def _lost_devices(ended: Ended, records: Sequence[RankRecord]) -> tuple[str, ...]:
    """Names of all that the nodes have where one was lost, but for what a node has that is well:
    nodes may be containers of one machine."""
    nodes = ended.node_devices
    reported = (one.rank for one in records if one.outcome is Outcome.DEVICE_LOST)
    at = {*ended.lost_nodes, *(rank * len(nodes) // len(ended.ranks) for rank in reported)}
    lost = {name for place, names in enumerate(nodes) if place in at for name in names}
    well = {name for place, names in enumerate(nodes) if place not in at for name in names}
    return tuple(sorted(lost - well))


def _failure(end: RankEnd, record: RankRecord | BadRecord, ended: Ended) -> _Failure | None:
    rank = end.rank
    if isinstance(record, RankRecord) and record.outcome not in RAN:
        detail = f"rank {rank} in {record.phase}: {record.error or record.outcome}"
        if short := record.oom:
            more, used = size_text(short.requested_bytes), size_text(short.allocated_bytes)
            detail = (
                f"rank {rank} ran out of memory in {short.phase}: {more} more than {used} in use,"
                f" of {size_text(short.limit_bytes)} allowed"
            )
        return _Failure(rank=rank, outcome=record.outcome, at=record.ended_at, detail=detail)
    if isinstance(record, RankRecord) and (end.stopped or end.code == 0):
        return None
    if isinstance(record, BadRecord) and end.stopped and record.missing:
        return None  # it waited for a rank that had failed, or the deadline passed
    # a failure that the rank itself did not report
    written = f"; its record {record.why}" if isinstance(record, BadRecord) else " after its steps"
    detail = f"rank {rank} ended with exit code {end.code}{written}"
    if end.code == SUPERVISOR_GONE:
        detail = f"rank {rank} ended because its worker was stopped or too slow to be heard"
    elif end.code < 0:
        try:
            name = signal.Signals(-end.code).name
        except ValueError:
            name = f"signal {-end.code}"
        detail = f"rank {rank} was ended by {name}{written}"
    killed = end.code == -signal.SIGKILL and not end.stopped
    return _Failure(
        rank=rank,
        outcome=Outcome.HOST_OOM if killed and ended.host_oom_kills else Outcome.CRASHED,
        at=end.ended_at,
        detail=detail,
        signal=0 if end.stopped else max(0, -end.code),
    )


def _causality(failure: _Failure) -> tuple[int, float, int]:
    """Sorts causes before consequences, and then by time.

    Time alone would not do: a signal is seen a moment later than it comes, and by then another
    rank may have reported the broken connection. That rank's exception can be of any type, when
    it comes out of a backward pass, and libraries abort (SIGABRT) when they lose a peer.
    """
    if failure.outcome in CAUSES or failure.signal not in (0, signal.SIGABRT):
        order = 0
    else:
        order = 2 if failure.outcome is Outcome.COMMUNICATION_ERROR else 1
    return order, failure.at, failure.rank


def _agreed(records: Sequence[RankRecord]) -> tuple[Outcome, str, int]:
    """The outcome of ranks that have all done their steps, or have all agreed to end early."""
    timed = [{count: len(times) for count, times in r.step_times_s.items()} for r in records]
    for record, steps in zip(records, timed, strict=True):
        if record.outcome is not records[0].outcome:
            detail = f"rank {record.rank} ended as {record.outcome}, rank 0 as {records[0].outcome}"
            return Outcome.CRASHED, detail, record.rank
        if steps != timed[0]:
            detail = f"rank {record.rank} timed other steps than rank 0"
            return Outcome.CRASHED, detail, record.rank
    for record in records:
        did, had = record.optimizer_steps, record.expected_optimizer_steps
        if did != had:
            detail = f"rank {record.rank}: the optimizer stepped {did} times instead of {had}"
            return Outcome.WRONG_RESULT, detail, record.rank
        if record.moved_frozen:
            detail = f"rank {record.rank}: {record.moved_frozen} frozen parameters have changed"
            return Outcome.WRONG_RESULT, detail, record.rank
    return records[0].outcome, "", 0


def _clock_notes(clocks: Mapping[int, Mapping[str, Any]]) -> Iterator[str]:
    """Notes on the node from the clocks of each rank's GPU after its last step."""
    for reason in SLOWED_BY:
        if slowed := [rank for rank, one in clocks.items() if reason in one.get("throttle", ())]:
            yield (
                f"{_ranks(slowed)}: GPU slowed down after the last step ({reason}), so steps may"
                " have taken longer than the settings need"
            )
    mhz = {
        rank: one["sm_mhz"]
        for rank, one in clocks.items()
        if "sm_mhz" in one and not one.get("idle")
    }
    if not mhz:
        return
    slowest, fastest = min(mhz, key=mhz.__getitem__), max(mhz, key=mhz.__getitem__)
    if mhz[slowest] < mhz[fastest] * (1 - CLOCK_SPREAD):
        yield (
            f"SM clocks differ by {1 - mhz[slowest] / mhz[fastest]:.0%}:"
            f" {mhz[slowest]:.0f} MHz on rank {slowest}, {mhz[fastest]:.0f} MHz on rank {fastest}"
        )


def _worst_memory(ranks: Sequence[Memory]) -> Memory:
    worst = max(ranks, key=lambda m: m.allocated_bytes + m.overhead_bytes)
    retries = max(m.allocation_retries for m in ranks)
    of_all = tuple(m.allocated_bytes for m in ranks)
    return replace(worst, per_rank_bytes=of_all, allocation_retries=retries)


def _ranks(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = ", ".join(map(str, ranks[:4]))
    return f"ranks {shown}{', ...' if len(ranks) > 4 else ''}"
