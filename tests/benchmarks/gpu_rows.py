"""Planted rows of the GPU benchmark: what they must come to is known."""

MIB = 2**20
SETTINGS = {
    "sharding": "full_shard", "tp_size": 1, "tp_recompute_allgather": False, "pp_size": 1,
    "micro_batch_size": 1, "gradient_accumulation_steps": 1, "sync_each_batch": True,
    "activation_checkpointing": "none", "cpu_offload": False,
}  # fmt: skip


def measurement(mib, compute_s, exposed_s, wall_s):
    """Of a probe that ended well."""
    names = ("allocated_bytes", "allocated_low_bytes", "reserved_bytes", "device_bytes")
    sizes = dict.fromkeys(names, int(mib * MIB))
    exposed = {"value_s": exposed_s, "low_s": exposed_s, "high_s": exposed_s}
    return {
        "outcome": "ok", "detail": "", "oom": None, "wall_s": wall_s,
        "memory": {**sizes, "overhead_bytes": 0, "by_phase": {}, "by_category": {},
                   "per_rank_bytes": [sizes["allocated_bytes"]]},
        "step_times_s": {"1": [s + exposed_s for s in compute_s]},
        "emulation": {"compute_s": {"1": compute_s}, "exposed_s": {"1": exposed},
                      "collectives": {"1": []}, "stands_in": False, "unpriced": ""},
    }  # fmt: skip


def told(mib, error, *, fits=True):
    """A prediction."""
    return {"allocated_bytes": {"value": mib * MIB}, "fits": fits, "error": error}


def row(part, name, **other):
    """A row that ended well, of 1000 MiB, and predicted 1% too high by arithmetic."""
    found = {
        "key": f"{part} cold {name} #0", "part": part, "way": "cold", "model": "llama-3.2-1b",
        "cluster": "8xh200", "settings": SETTINGS, "repetition": 0, "limit_bytes": None,
        "workload": {"sequence_length": 4096, "optimizer": "adamw", "precision": "bf16"},
        "published": {}, "outcome": "ok", "detail": "",
        "measurement": measurement(1000, [0.1, 0.1, 0.1], 0.02, 10.0),
        "predicted": {"dry_run": told(1000, 0.0), "arithmetic": told(1010, 0.01)},
        "computing": {"measured_s": 0.1, "catalogue_s": 0.12, "calibrated_s": None},
        "case_s": 12.0, "date": "2026-01-01", "commit": "abc1234",
    }  # fmt: skip
    return {**found, **other}


def no_memory(part, name, **other):
    """A row that ran out of memory at 990 MiB, when it asked for 20 more."""
    oom = {"rank": 0, "phase": "backward", "requested_bytes": 20 * MIB,
           "allocated_bytes": 990 * MIB, "reserved_bytes": 995 * MIB,
           "limit_bytes": 1000 * MIB}  # fmt: skip
    shown = {**measurement(0, [1.0], 0.0, 5.0), "outcome": "oom", "memory": None,
             "emulation": None, "step_times_s": {}, "oom": oom}  # fmt: skip
    return row(part, name, outcome="oom", measurement=shown, **other)
