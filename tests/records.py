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


def dry_trace(request):
    """The trace of a dry run whose memory grows with the micro-batch."""
    sizes = [2.0**20 * size for size in request["micro_batch_sizes"]]
    line = {"bytes": sizes, "categories": {"activations": sizes}}
    parts = {"micro_batch": 0, "phase": "backward", "part": "before", "lines": [line]}
    return {
        "format": 2,
        "device": request["spec"]["device"],
        "layers": request["spec"]["model"]["num_hidden_layers"],
        "micro_batch_sizes": request["micro_batch_sizes"],
        "steps": [
            {"accumulation": count, "segments": [parts], "collectives": []}
            for count in request["accumulation_counts"]
        ],
        "block_bytes": 0,
        "notes": [],
        "versions": {"torch": "2.13.0"},
        "seconds": 0.1,
    }
