"""``tuner rehearse``: what the script's ranks would hold, who holds it, and a step's time."""

from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any

from rich.console import Console

from tuner.cli.console import paragraphs, print_facts, print_rows, stdout_console, watch_of
from tuner.cli.errors import print_json, report
from tuner.cli.options import RehearseAsked
from tuner.cli.tables import seconds_text
from tuner.client.rehearse import REHEARSED, Rehearsal, rehearse
from tuner.client.worker_process import Signals
from tuner.core.words import range_text, share_text, speed_text
from tuner.cost.time.rehearsed import RehearsedTime
from tuner.cost.time.step import TOLD_FROM
from tuner.errors import NothingFitsError, ProbeError
from tuner.text import count_text, duration_text, size_text, time_text

# Moments that are shown, and parts of the time; all are in --json.
MOST_MOMENTS = 3
MOST_PARTS = 6


def run(asked: RehearseAsked) -> int:
    """Rehearse; the exit code: 0 it ran, 1 it failed, 3 it ran out of memory."""
    with watch_of(as_json=asked.json) as watch:
        watch.waiting("rehearsing the script")
        found = rehearse(
            asked.command,
            cluster=asked.cluster,
            ranks=asked.ranks.split(","),
            steps=asked.steps,
            seconds=asked.seconds,
            tokens_per_step=asked.tokens_per_step,
            network=asked.allow_network,
            writes=asked.allow_writes,
            even_here=asked.even_here,
            snapshot=asked.snapshot,
            signals=Signals(),
        )
        watch.waiting("")
    if asked.json:
        print_json(found.as_dict())
    else:
        for rank in found.ranks:
            show(stdout_console(), found, rank)
    for rank in found.ranks:
        where = f" at {rank['at']}" if rank["at"] else ""
        why = f"rank {rank['rank']}{where}: {rank['detail']}"
        if rank["outcome"] == "oom":
            return report(NothingFitsError(f"out of memory, rehearsed: {why}"), as_json=False)
        if not rank["steps"]:
            return report(ProbeError(f"no step was seen: {why}"), as_json=False)
        if rank["outcome"] == "failed":
            return report(ProbeError(f"the script failed: {why}"), as_json=False)
    return 0


def show(console: Console, found: Rehearsal, rank: Mapping[str, Any]) -> None:
    """One rank: its figures, its steps, its highest moments, and what was not done."""
    console.print()
    print_facts(console, _facts(found, rank))
    if steps := rank["steps"]:
        console.print()
        phases = sorted({name for step in steps for name in step["by_phase"]})
        titles = ("step", "allocated", "reserved", "unused of it", *phases)
        rows = [
            (
                str(step["step"]),
                *(size_text(step[f"{name}_bytes"])
                  for name in ("allocated", "reserved", "fragmentation")),
                *(size_text(step["by_phase"].get(name, 0)) for name in phases),
            )
            for step in steps
        ]  # fmt: skip
        print_rows(titles, rows, ",".join(titles))
    timed = RehearsedTime.from_dict(rank["time"])
    if parts := timed.parts[:MOST_PARTS]:
        console.print()
        whole = timed.step_time_s.value or 1.0
        titles = ("time of a step", "phase", "seconds", "of the step")
        rows = [(part.kind, part.phase, time_text(part.seconds), share_text(part.seconds / whole))
                for part in parts]  # fmt: skip
        print_rows(titles, rows, "seconds,of the step")
    if rank["held"]:
        _show_lines(console, "Held when memory ran out", rank["held"])
    for moment in rank["moments"][:MOST_MOMENTS] if rank["steps"] or rank["held"] else ():
        step = f", step {moment['step']}" if moment["step"] else ""
        title = f"Highest in {moment['phase']}{step}: {size_text(moment['bytes'])} asked for"
        _show_lines(console, title, moment["lines"])
    if rank["collectives"]:
        console.print()
        rows = [(one["op"], str(one["ranks"]), str(one["calls"]), size_text(one["bytes"]))
                for one in rank["collectives"]]  # fmt: skip
        print_rows(
            ("collective", "ranks", "calls", "bytes in all"), rows, "ranks,calls,bytes in all"
        )
    paragraphs(console, list(rank["patched"].values()), "Other than on a GPU")
    paragraphs(console, [*rank["not_run"], *rank["refused"]], "Not done")
    if rank.get("said"):
        paragraphs(console, rank["said"].splitlines()[-20:], "Its last words")
    console.print()


def _facts(found: Rehearsal, rank: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    cluster = found.cluster.name if found.cluster else "GPUs without bounds"
    yield "rank", f"{rank['rank']} of {rank['world_size']}, on {cluster}"
    yield "figures", f"{REHEARSED}: torch's allocator counted them, no GPU measured them"
    memory, steps = rank["memory"], count_text(len(rank["steps"]), "step")
    if rank["outcome"] == "oom":
        yield "fits", f"no: {rank['detail']}"
        if rank["at"]:
            yield "at", rank["at"]
    elif found.fits is not None and rank["steps"]:
        yield "fits", f"yes, in {steps}; {rank['detail']}" if rank["outcome"] != "ok" else "yes"
    else:
        yield "ended", rank["detail"]
    if memory:
        yield "allocated", f"{size_text(memory['allocated_bytes'])} at most"
        yield "reserved", f"{size_text(memory['reserved_bytes'])} at most"
        beside, total = size_text(memory["beside_bytes"]), size_text(memory["device_bytes"])
        yield "beside", f"{beside} of context and communicators, as assumed"
        if found.cluster:
            yield "GPU", f"{total} as CUDA offers them"
        if memory["allocation_retries"]:
            yield "near misses", f"{memory['allocation_retries']} allocations needed a second try"
    yield from _time_facts(RehearsedTime.from_dict(rank["time"]))
    host = size_text(rank["host_bytes"])
    yield "cost", f"{duration_text(rank['wall_s'])}, {host} of this machine's memory"
    if rank.get("snapshot"):
        yield "snapshot", f"{rank['snapshot']}, for https://docs.pytorch.org/memory_viz"


def _time_facts(found: RehearsedTime) -> Iterator[tuple[str, str]]:
    step, exposed = found.step_time_s, found.exposed_s
    if step.value is None:
        yield "step time", f"unknown: {found.unknown}"
        return
    told = "what one step launched, each kernel and collective by arithmetic"
    yield "step time", f"{seconds_text(step)}, {step.provenance}: {told}"
    if found.tokens_per_step:
        speed = found.tokens_per_s
        words = f"{speed_text(speed.value)} tokens/s of all GPUs ({range_text(speed)})"
        yield "speed", f"{words}, where a step has {found.tokens_per_step:,}"
    yield "sending", f"{seconds_text(exposed)} of it is communication that nothing hides"
    if found.host_s > TOLD_FROM * step.value:
        yield "launching", f"for {time_text(found.host_s)} s of it the GPU waits for the host"
    if found.uncounted:
        yield "not counted", ", ".join(found.uncounted)


def _show_lines(console: Console, title: str, lines: list[dict[str, Any]]) -> None:
    console.print()
    console.print(title, style="bold")
    for one in lines:
        places = [place for place in (one["at"], one["within"]) if place]
        for size, place in zip_longest([size_text(one["bytes"])], places, fillvalue=""):
            text = f"  {size:>9}  {place}"
            console.print(text, soft_wrap=True, markup=False, highlight=False)
