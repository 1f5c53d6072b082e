"""Reads torch's memory history: the highest moments of a rank, and the lines that hold them."""

import linecache
import sysconfig
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.text import count_text

# Lines of a moment that are told; the rest is told as one sum.
MOST_LINES = 8
NO_LINE = "no line of Python: autograd's own thread"
_INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
_OURS = str(Path(__file__).parent)
FREED = frozenset({"free", "free_completed"})


@dataclass(frozen=True, slots=True)
class Mark:
    """The moment at which a phase of a step begins."""

    time_us: int
    step: int  # from 1
    phase: str


def moments(trace: Sequence[Mapping[str, Any]], marks: Sequence[Mark]) -> list[dict[str, Any]]:
    """The highest moment of each phase, over all steps, the highest first.

    Args:
        trace: of one device, in ``device_traces`` of torch's snapshot.
        marks: in order of time; what was before the first is ``start``.
    """
    highest: dict[str, tuple[int, int, int]] = {}  # bytes, index in the trace, step
    held, at = 0, -1
    for index, place, change in _changes(trace):
        held += change
        while at + 1 < len(marks) and marks[at + 1].time_us <= trace[place]["time_us"]:
            at += 1
        phase, step = (marks[at].phase, marks[at].step) if at >= 0 else ("start", 0)
        if held > highest.get(phase, (0, 0, 0))[0]:
            highest[phase] = held, index, step
    found = [
        {"bytes": size, "step": step, "phase": phase, "lines": _lines(trace, index)}
        for phase, (size, index, step) in highest.items()
    ]
    return sorted(found, key=lambda one: -one["bytes"])


def out_of_memory(trace: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The lines that held memory when an allocation failed for the last time; none if none did."""
    failed = [place for place, one in enumerate(trace) if one["action"] == "oom"]
    if not failed:
        return []
    before = [index for index, place, _ in _changes(trace) if place < failed[-1]]
    return _lines(trace, before[-1]) if before else []


def _changes(trace: Iterable[Mapping[str, Any]]) -> Iterable[tuple[int, int, int]]:
    """Each change of what is allocated: its number, its place in the trace, and bytes."""
    sizes: dict[int, int] = {}
    number = 0
    for place, one in enumerate(trace):
        if one["action"] == "alloc":
            sizes[one["addr"]] = one["size"]
            yield number, place, one["size"]
        elif one["action"] in FREED and one["addr"] in sizes:
            yield number, place, -sizes.pop(one["addr"])
        else:
            continue
        number += 1


def _lines(trace: Sequence[Mapping[str, Any]], until: int) -> list[dict[str, Any]]:
    """What is held after change ``until``, by the lines that allocated it, most first."""
    living: dict[int, Mapping[str, Any]] = {}
    for number, place, change in _changes(trace):
        if number > until:
            break
        one = trace[place]
        if change >= 0:
            living[one["addr"]] = one
        else:
            living.pop(one["addr"], None)
    sums: dict[tuple[str, str], int] = defaultdict(int)
    for one in living.values():
        sums[_where(one["frames"])] += one["size"]
    ordered = sorted(sums.items(), key=lambda item: -item[1])
    told = [{"at": at, "within": in_, "bytes": size} for (at, in_), size in ordered[:MOST_LINES]]
    if rest := sum(size for _, size in ordered[MOST_LINES:]):
        others = count_text(len(ordered) - MOST_LINES, "other line")
        told.append({"at": others, "within": "", "bytes": rest})
    return told


def _where(frames: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """The user's own innermost line, and the library's line that it led to."""
    own = within = ""
    for frame in frames:  # innermost first
        name = frame["filename"]
        if name.startswith(("<", _OURS)) or not name.endswith(".py"):
            continue
        if is_installed(name):
            short = _short(name)
            if not within or (within.startswith("torch/") and not short.startswith("torch/")):
                within = f"{short}:{frame['line']} {frame['name']}"
            continue
        own = line_text(name, frame["line"])
        break
    return own or (NO_LINE if not within else ""), within


def line_text(path: str, line: int) -> str:
    text = linecache.getline(path, line).strip()
    return f"{Path(path).name}:{line} {text}".strip()


def is_installed(path: str) -> bool:
    return path.startswith(_INSTALLED) or "site-packages" in path


def _short(path: str) -> str:
    for name in ("site-packages/", "dist-packages/"):
        if name in path:
            return path.partition(name)[2]
    return Path(path).name
