"""What a first look at a GPU found, as lines that say ok or not. Plain arithmetic, no device."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from common import Goal

from tuner.core.evaluation import Evaluation
from tuner.core.measurement import Measurement, Memory, Outcome, OutOfMemory
from tuner.planner.probes import clocks_text

MIB, GIB = 2**20, 2**30
WALL_S = 180
"""Seconds in which all of it is done."""
WITHIN = 0.05
"""A predicted peak is as near to the allocated one."""
OWN_BYTES = 1536 * MIB
"""That one context and what the driver keeps may take of a GPU before anything is allocated."""
LARGEST_SEGMENT = 20 * MIB
"""The caching allocator asks the driver for this at least, where tensors of over 1 MiB need memory
(``kLargeBuffer`` in torch's ``c10/core/AllocatorConfig.h``)."""


class Verdict(StrEnum):
    """What a line comes to."""

    OK = "ok"  # as expected
    OFF = "off"  # not as expected; the exit code does not depend on it
    FAIL = "FAIL"  # not as it must be: the exit code is 1
    NONE = "-"  # not looked at here, or nothing is expected of it


@dataclass(frozen=True, kw_only=True)
class Line:
    """One check."""

    check: str  # what was looked at
    verdict: Verdict  # what it comes to
    figure: str  # what was seen
    expected: str = ""  # what was expected

    def as_dict(self) -> dict[str, str]:
        return {"check": self.check, "": str(self.verdict), "figure": self.figure,
                "expected": self.expected}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Tried:
    """A probe, and what was predicted of it."""

    measurement: Measurement  # as a worker records it
    prediction: Evaluation | None = None  # of its settings; `None` where that is not compared
    by: str = ""  # what the prediction is from: dry run or arithmetic

    @property
    def error(self) -> float | None:
        """The predicted peak over the allocated one, less 1; ``None`` without either."""
        memory = self.measurement.memory
        if memory is None or self.prediction is None or not self.prediction.allocated_bytes.value:
            return None
        return self.prediction.allocated_bytes.value / memory.allocated_bytes - 1


@dataclass(frozen=True, kw_only=True)
class Found:
    """All that was found."""

    look: Mapping[str, Any]  # what a worker's look at its GPUs tells of the first
    why_unusable: str = ""  # why no probe can be run; empty if there is no reason
    probes: Mapping[str, Tried] = field(default_factory=dict)  # by name
    left_out: Mapping[str, str] = field(default_factory=dict)  # why probes were not run, by name
    cap_bytes: int = 0  # the memory limit of the probe that has to run out of memory
    wall_s: float = 0.0  # seconds that all of it took


def lines(found: Found) -> list[Line]:
    return [*_start(found), *(_probes(found) if found.probes else ()), _wall(found)]


def goals(found: Found) -> list[Goal]:
    """The figures that the whole is held to."""
    failed = [line for line in lines(found) if line.verdict is Verdict.FAIL]
    errors = [abs(one.error) for one in found.probes.values() if one.error is not None]
    return [
        Goal(name="checks that fail", goal="<= 0", value=len(failed)),
        Goal(name="predicted against allocated, largest error", goal=f"<= {WITHIN}",
             value=max(errors, default=None)),
        Goal(name="all of it, s", goal=f"<= {WALL_S}", value=found.wall_s),
    ]  # fmt: skip


def _start(found: Found) -> Iterator[Line]:
    look, why = found.look, found.why_unusable
    built = f"torch {look.get('torch', '?')}, CUDA {look.get('cuda') or 'none'}"
    yield Line(
        check="torch, driver and NCCL",
        verdict=Verdict.FAIL if why else Verdict.OK,
        figure=f"{built}; {why or 'driver ' + (look.get('driver') or 'not told')}",
        expected="all GPUs compute, and add up over all",
    )
    if why:
        return
    clocks = (clocks_text(one.measurement) for one in found.probes.values())
    yield _told("GPU", f"{look['device']}; {next(filter(None, clocks), 'clocks are not told')}")
    taken = look["total_bytes"] - look["free_bytes"]
    yield Line(
        check="free memory",
        verdict=Verdict.OK if taken <= OWN_BYTES else Verdict.OFF,
        figure=f"{_gib(look['free_bytes'])} of {_gib(look['total_bytes'])}",
        expected=f"at most {OWN_BYTES // MIB} MiB taken before probes",
    )


def _probes(found: Found) -> Iterator[Line]:
    for name, why in found.left_out.items():
        yield _told(name, why)
    for name, tried in found.probes.items():
        if name != "capped":
            yield _ended(name, tried)
    for name in ("ddp", "full_shard"):
        yield _equal(f"{name}: warm as cold", found, f"{name}, warm", f"{name}, cold")
    yield _less("checkpointing", found, "checkpointing", "full_shard, warm", Verdict.FAIL)
    if "adamw_8bit" in found.probes:
        yield _less("8-bit optimizer", found, "adamw_8bit", "ddp, warm", Verdict.OFF)
    yield _capped(found)
    yield _equal("after running out", found, "full_shard, after", "full_shard, cold")
    for name in ("full_shard, cold", "2 ranks"):
        if name in found.probes:
            yield from _overhead(name, found.probes[name])


def _ended(name: str, tried: Tried) -> Line:
    """A probe has ended well, and near what was predicted of it."""
    memory, error = tried.measurement.memory, tried.error
    if tried.measurement.outcome is not Outcome.OK or memory is None:
        figure = f"{tried.measurement.outcome}: {tried.measurement.detail}"
        optional = name == "adamw_8bit"  # it is torchao's, and compiled
        return Line(check=f"probe: {name}", verdict=Verdict.OFF if optional else Verdict.FAIL,
                    figure=figure, expected="ends ok")  # fmt: skip
    figure, expected, verdict = _gib(memory.allocated_bytes), "ends ok", Verdict.OK
    if error is not None:
        figure += f", {tried.by} {error:+.2%}"
        expected += f", predicted within {WITHIN:.0%}"
        verdict = Verdict.OK if abs(error) <= WITHIN else Verdict.OFF
    if kernels := tried.measurement.attention:
        figure += f"; attention: {', '.join(kernels)}"
    return Line(check=f"probe: {name}", verdict=verdict, figure=figure, expected=expected)


def _equal(check: str, found: Found, one: str, other: str) -> Line:
    """What is allocated is equal to the byte; what is reserved beside that is told."""
    memory, cold = (found.probes[name].measurement.memory for name in (one, other))
    expected = f"allocated as in {other}, to the byte"
    if memory is None or cold is None:
        return Line(check=check, verdict=Verdict.FAIL, figure="no memory to compare",
                    expected=expected)  # fmt: skip
    off = differences(memory, cold)
    figure = ", ".join(f"{name} {size:+,d} B" for name, size in off.items()) or "equal"
    if more := memory.reserved_bytes - cold.reserved_bytes:
        figure += f"; reserved {more:+,d} B"
    return Line(check=check, verdict=Verdict.FAIL if off else Verdict.OK, figure=figure,
                expected=expected)  # fmt: skip


def differences(memory: Memory, cold: Memory) -> dict[str, int]:
    """Bytes by which what is allocated differs; names of what is equal are left out."""
    pairs = {name: (getattr(memory, name), getattr(cold, name))
             for name in ("allocated_bytes", "allocated_low_bytes")}  # fmt: skip
    for group in ("by_phase", "by_category"):
        mine, its = getattr(memory, group), getattr(cold, group)
        pairs |= {name: (mine.get(name, 0), its.get(name, 0)) for name in {**its, **mine}}
    return {name: a - b for name, (a, b) in pairs.items() if a != b}


def _less(check: str, found: Found, one: str, other: str, otherwise: Verdict) -> Line:
    memory, against = (found.probes[name].measurement.memory for name in (one, other))
    expected = f"less than {other}"
    if memory is None or against is None:
        return Line(check=check, verdict=otherwise, figure="no memory to compare",
                    expected=expected)  # fmt: skip
    figure = f"{_gib(memory.allocated_bytes)} against {_gib(against.allocated_bytes)}"
    is_less = memory.allocated_bytes < against.allocated_bytes
    return Line(check=check, verdict=Verdict.OK if is_less else otherwise, figure=figure,
                expected=expected)  # fmt: skip


def _capped(found: Found) -> Line:
    """It runs out of memory at its cap, and says by how much."""
    cap, tried = found.cap_bytes, found.probes.get("capped")
    expected = f"oom at {cap / MIB:.0f} MiB"
    if tried is None:
        return Line(check="cap on memory", verdict=Verdict.FAIL, figure="no peak to cap")
    measurement, oom = tried.measurement, tried.measurement.oom
    if measurement.outcome is not Outcome.OOM or oom is None:
        figure = f"{measurement.outcome} {measurement.detail}".strip()
        return Line(check="cap on memory", verdict=Verdict.FAIL, figure=figure, expected=expected)
    figure = (
        f"oom in {oom.phase}: {oom.requested_bytes / MIB:.0f} MiB more than"
        f" {oom.allocated_bytes / MIB:.0f} allocated, {oom.reserved_bytes / MIB:.0f} reserved,"
        f" of {oom.limit_bytes / MIB:.0f}"
    )
    verdict = Verdict.OK if _is_right(oom, cap) else Verdict.FAIL
    return Line(check="cap on memory", verdict=verdict, figure=figure, expected=expected)


def _is_right(oom: OutOfMemory, cap_bytes: int) -> bool:
    """Whether what was held stayed within the cap, and what was asked for goes beyond it."""
    within = 0 < oom.allocated_bytes <= oom.reserved_bytes <= cap_bytes
    beyond = oom.reserved_bytes + max(oom.requested_bytes, LARGEST_SEGMENT) > cap_bytes
    return oom.limit_bytes == cap_bytes and within and beyond and oom.requested_bytes > 0


def _overhead(name: str, tried: Tried) -> Iterator[Line]:
    """The context, and of several ranks their communicators: seen against assumed."""
    memory, told = tried.measurement.memory, tried.prediction
    if memory is None or told is None:
        return
    seen, assumed = memory.overhead_bytes, told.outside_bytes
    what = "context and communicators" if name == "2 ranks" else "context"
    if name != "2 ranks":  # an emulated probe's record has the communicators' price in it
        seen, assumed = seen - int(told.outside_bytes - told.context_bytes), told.context_bytes
    yield Line(
        check=f"{name}: {what}",
        verdict=Verdict.OK if assumed / 2 <= seen <= 2 * assumed else Verdict.OFF,
        figure=f"{seen / MIB:.0f} MiB",
        expected=f"half to twice the {assumed / MIB:.0f} MiB that are assumed",
    )


def _wall(found: Found) -> Line:
    return Line(
        check="all of it",
        verdict=Verdict.OK if found.wall_s <= WALL_S else Verdict.OFF,
        figure=f"{found.wall_s:.0f} s",
        expected=f"at most {WALL_S} s",
    )


def _told(check: str, figure: str) -> Line:
    return Line(check=check, verdict=Verdict.NONE, figure=figure)


def _gib(size_bytes: float) -> str:
    return f"{size_bytes / GIB:.2f} GiB"
