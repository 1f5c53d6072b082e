"""Records as ranks write them, and traces as the dry-run program does; imports nothing of ours."""

import time

MEMORY = {
    "allocated_bytes": 1000,
    "allocated_low_bytes": 900,
    "reserved_bytes": 1000,
    "device_bytes": 5000,
    "overhead_bytes": 0,
    "by_phase": {"forward": 1000},
    "by_category": {"parameters": 10},
    "allocation_retries": 0,
}
SHORTAGE = {
    "phase": "forward",
    "requested_bytes": 10,
    "allocated_bytes": 95,
    "reserved_bytes": 95,
    "limit_bytes": 100,
}


def rank_record(rank, outcome="ok", **more):
    """A rank's record as the probe program writes it."""
    ran = outcome in ("ok", "stopped_early")
    return {
        "format": 2,
        "rank": rank,
        "outcome": outcome,
        "phase": "time" if ran else "forward",
        "error": None if ran else {"type": "Error", "message": outcome, "traceback": ""},
        "ended_at": time.time(),
        "oom": SHORTAGE if outcome == "oom" else None,
        "memory": MEMORY if ran else None,
        "step_times_s": {"1": [0.2, 0.1 + rank / 10]} if ran else {},
        "collectives": [],
        "tracked_accumulation": 0,
        "reducing_micro_batches": 1,
        "losses": [2.0],
        "gradient_norms": [1.0],
        "optimizer_steps": 3,
        "expected_optimizer_steps": 3,
        "versions": {"python": "3"},
        "hardware": {"device": "cpu"},
        "emulation": None,
        **more,
    }


VERSIONS = {"torch": "2.13.0", "transformers": "5.23.0", "accelerate": "1.15.0"}
"""Of the packages that the dry runs are said to have been made with."""


def dry_trace(request, one_bytes=2.0**20, more_bytes=2.0**20):
    """The trace of a dry run whose peak is the same at every depth: bytes at one sequence, and for
    each one more."""
    sizes = request["micro_batch_sizes"]
    peaks = [one_bytes + more_bytes * (size - 1) for size in sizes]
    line = {"bytes": peaks, "categories": {"activations": peaks}}
    call = {"op": "all_gather", "axis": "dp", "phase": "forward", "overlap": "prefetched"}
    steps = [
        {
            "accumulation": count,
            "segments": [
                {"micro_batch": 0, "phase": "backward", "part": "before", "lines": [line]},
                {"micro_batch": 0, "phase": "optimizer", "part": "after", "lines": [line]},
            ],
            "collectives": [{**call, "count": count, "bytes": [64.0 * count for _ in peaks]}],
        }
        for count in request["accumulation_counts"]
    ]
    return {
        "format": 2,
        "device": request["spec"]["device"],
        "layers": request["spec"]["model"]["num_hidden_layers"],
        "micro_batch_sizes": sizes,
        "steps": steps,
        "block_bytes": 0,
        "notes": [],
        "versions": VERSIONS,
        "seconds": 1.0,
    }
