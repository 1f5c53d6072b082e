"""One rank of a probe whose allocations torch's profiler counts; started by ``profiled_peaks.py``.

The steps are the probe's own, without its tracker: the allocator reports each allocation to the
profiler (``c10/core/CPUAllocator.cpp``), whoever asked for it. The profiler is on from before the
model is built, so its running total is what is allocated, and needs no baseline.
"""

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function

from workers.probe.device import open_device
from workers.probe.group import join
from workers.probe.model import micro_batches
from workers.probe.record import versions
from workers.probe.spec import Spec, read_spec
from workers.probe.stack import Stack, build_stack, optimizer_step
from workers.probe.tracker import Phase

STEPS = 2
"""As many as a probe tracks: the first makes the optimizer's state."""
MARK = "benchmark: a step"


def batches(spec: Spec, rank: int, step: int) -> Sequence[torch.Tensor]:
    count, data_rank = spec.accumulation_counts[-1], spec.data_parallel_rank(rank)
    return micro_batches(spec, step=step, count=count, data_rank=data_rank)


def run_steps(spec: Spec, rank: int) -> Stack:
    device = open_device(spec.device, Phase(), local_rank=rank, limit_bytes=None)
    stack = build_stack(spec, device)
    stack.set_accumulation(spec.accumulation_counts[-1])
    for step in range(STEPS):
        tokens = batches(spec, rank, step)
        with record_function(MARK):
            optimizer_step(stack, tokens, lambda name: None)
    return stack


def peaks(trace: dict[str, Any]) -> list[dict[str, int]]:
    """The highest total of each step, of all that is allocated and of what is not the backend's.

    The backend's is what gloo allocates for itself: inside a ``c10d`` operator (it copies what a
    reduce-scatter reduces), or on a thread of its own. No other backend does that.
    """
    events = sorted((e for e in trace["traceEvents"] if "ts" in e), key=lambda e: e["ts"])
    marks = [e for e in events if e.get("name") == MARK and e.get("cat") == "user_annotation"]
    memory = [e for e in events if e.get("name") == "[memory]" and e["args"]["Device Type"] == 0]
    calls = [e for e in events if e.get("cat") == "cpu_op" and e["name"].startswith("c10d::")]
    steps = [{"peak_bytes": 0, "peak_without_backend_bytes": 0} for _ in marks]
    live: dict[int, tuple[int, bool]] = {}
    total, own = 0, 0
    for event in memory:
        address, size = event["args"]["Addr"], event["args"]["Bytes"]
        known, was_own = live.pop(address, (0, False))  # also where a free went unseen
        total, own = total - known, own - known * was_own
        if size > 0:
            live[address] = size, not _of_backend(event, marks, calls)
            total, own = total + size, own + size * live[address][1]
        for step, mark in zip(steps, marks, strict=True):
            if _within(event, mark):
                step["peak_bytes"] = max(step["peak_bytes"], total)
                step["peak_without_backend_bytes"] = max(step["peak_without_backend_bytes"], own)
    return steps


def _of_backend(event: dict[str, Any], marks: list[Any], calls: list[Any]) -> bool:
    if event["tid"] != marks[0]["tid"]:
        return True
    return any(_within(event, call) for call in calls if call["tid"] == event["tid"])


def _within(event: dict[str, Any], span: dict[str, Any]) -> bool:
    return bool(span["ts"] <= event["ts"] <= span["ts"] + span["dur"])


def profiled(spec: Spec, folder: Path) -> dict[str, Any]:
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        stack = run_steps(spec, 0)
    path = folder / "trace.json"
    profiler.export_chrome_trace(str(path))
    steps = peaks(json.loads(path.read_text()))
    assert len(steps) == STEPS, f"{len(steps)} steps marked in the trace"
    assert stack.optimizer_steps == STEPS
    return {"versions": versions(), "steps": steps}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    spec, rank = read_spec(folder / "spec.json"), int(os.environ["RANK"])
    join(spec.world_size, rank, "gloo", f"file://{folder}/rendezvous")
    if rank == 0:
        (folder / "profiled.json").write_text(json.dumps(profiled(spec, folder)))
    else:
        run_steps(spec, rank)
    dist.barrier()
    os._exit(0)  # gloo can hang in the interpreter's shutdown


if __name__ == "__main__":
    main()
