"""Examples of the OpenAPI document: requests that are accepted, and answers, shortened."""

from collections.abc import Mapping
from typing import Any

STUDY_ID = "st-5c1f0a9be2d4"
TERMS_ID = "2f6d0c81b97e"
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}
WORKLOAD = {"model": "llama-3.1-8b", "sequence_length": 4096, "global_batch_size": 256}
REQUESTS: list[Any] = [
    {"workload": WORKLOAD, "cluster": "8xh100-80gb"},
    {
        "workload": {**WORKLOAD, "model": CONFIG, "precision": "bf16_mixed"},
        "cluster": {
            "nodes": 4,
            "gpus_per_node": 8,
            "gpu": "h100-80gb",
            "inter_node": {"bytes_per_s": 5e10, "latency_s": 1e-5},
        },
        "framework": {"name": "accelerate", "versions": {"accelerate": "1.15.0"}},
        "knobs": {"sharding": ["full_shard", "hybrid_shard"]},
        "fidelity": "auto",
        "budget": {"max_probes": 12, "wall_s": 1800},
        "headroom": 0.1,
    },
]
SETTINGS = {
    "sharding": "full_shard",
    "tp_size": 1,
    "tp_recompute_allgather": False,
    "pp_size": 1,
    "micro_batch_size": 2,
    "gradient_accumulation_steps": 16,
    "sync_each_batch": False,
    "activation_checkpointing": "none",
    "cpu_offload": False,
}


def _quantity(value: float, low: float, high: float) -> dict[str, Any]:
    return {"value": value, "low": low, "high": high, "provenance": "measured"}


BEST: dict[str, Any] = {
    "settings": SETTINGS,
    "provenance": "measured",
    "fits": True,
    "memory": {
        "allocated_gib": _quantity(61.9, 61.9, 61.9),
        "needed_gib": _quantity(63.2, 63.2, 63.2),
        "reserved_gib": _quantity(66.1, 65.8, 66.1),
        "device_gib": _quantity(67.4, 67.1, 67.4),
        "limit_gib": 75.5,
        "breakdown": {"parameters": 3.7, "gradients": 14.9, "optimizer": 7.5, "activations": 35.8},
    },
    "tokens_per_s_per_gpu": _quantity(9412.0, 9370.0, 9455.0),
    "step_time_s": _quantity(13.93, 13.86, 13.99),
    "guard": {
        "verdict": "passed",
        "versions": {"torch": "2.13.0"},
        "date": "2026-11-21T14:05:00.000Z",
        "why": "",
    },
}
QUESTION: dict[str, Any] = {
    "workload": {
        **WORKLOAD,
        "model": CONFIG,
        "model_name": "llama-3.1-8b",
        "optimizer": "adamw",
        "precision": "bf16",
        "reduce_dtype": "bf16",
    },
    "cluster": {"nodes": 1, "gpus_per_node": 8, "gpu": {"name": "h100-80gb"}},
    "framework": {"name": "torch", "versions": {"torch": "2.13.0"}},
}
STUDY: dict[str, Any] = {
    "study_id": STUDY_ID,
    "state": "done",
    "reason": "no probe is expected to gain 1% or more",
    "revision": 17,
    "created_at": "2026-11-21T13:40:12.031Z",
    "asked_at": "2026-11-21T13:40:12.031Z",
    "probes_before": 0,
    "question": {**QUESTION, "knobs": {}},
    "terms": {
        "fidelity": "measured",
        "headroom": 0.05,
        "memory_limit_bytes": None,
        "tolerance": 0.01,
        "max_probes": 20,
        "max_dry_runs": None,
        "wall_s": None,
        "device_s": None,
        "pool": "",
    },
    "terms_id": TERMS_ID,
    "pending": False,
    "suggestion": {
        "study_id": STUDY_ID,
        "state": "done",
        **QUESTION,
        "best": BEST,
        "alternatives": [],
        "pareto": [],
        "dead_knobs": [{"knob": "tp_recompute_allgather", "why": "tp_size is 1"}],
        "inactive_knobs": [{"knob": "tp_recompute_allgather", "why": "tp_size is 1"}],
        "space": {"legal": 132, "predicted_to_fit": 71},
        "probes": {"ok": 7, "oom": 1},
        "cost": {"wall_s": 412.0, "gpu_s": 3296.0},
        "explanation": ["No other settings that fit were timed."],
        "facts": [{"kind": "no_other"}],
        "launch": {"argv": ["torchrun", "--standalone", "SCRIPT.py"], "files": {}},
    },
    "no_answer": None,
}
STUDIES: dict[str, Any] = {
    "studies": [
        {
            "study_id": STUDY_ID,
            "model": "llama-3.1-8b",
            "cluster": "8xh100-80gb",
            "state": "done",
            "reason": "no probe is expected to gain 1% or more",
            "pool": "",
            "revision": 17,
            "probes": {"ok": 7, "oom": 1},
            "created_at": "2026-11-21T13:40:12.031Z",
            "asked_at": "2026-11-21T13:40:12.031Z",
        }
    ],
    "next": None,
}
PROBES: dict[str, Any] = {
    "study_id": STUDY_ID,
    "revision": 17,
    "probes": [
        {
            "id": 12,
            "settings": SETTINGS,
            "fidelity": "measured",
            "repetition": 0,
            "accumulation_counts": [1, 2],
            "state": "queued",
            "memory_limit_bytes": 81068838912,
            "finished_at": None,
            "measurement": None,
        }
    ],
}
EVENT: dict[str, Any] = {
    "id": 4711,
    "study_id": STUDY_ID,
    "kind": "study",
    "at": "2026-11-21T13:47:04.512Z",
    "data": {
        "before": "running",
        "state": "done",
        "reason": "no probe is expected to gain 1% or more",
    },
}
EVENT_STREAM = (
    "id: 4711\nevent: study\n"
    'data: {"id":4711,"study_id":"st-5c1f0a9be2d4","kind":"study","at":"2026-11-21T13:47:04.512Z",'
    '"data":{"before":"running","state":"done","reason":""}}\n\n'
)
PROBLEM: dict[str, Any] = {
    "type": "urn:tuner:problem:invalid_value",
    "title": "Unprocessable Content",
    "status": 422,
    "code": "invalid_value",
    "detail": "workload.sequence_length: got 0; must be an integer from 2 to 4194304",
    "field": "workload.sequence_length",
    "allowed": "must be an integer from 2 to 4194304",
}
EXPORTED: Mapping[str, object] = {
    "application/yaml": (
        "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nmixed_precision: bf16\n"
    ),
    "application/json": {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2},
    "application/toml": "[training]\nlocal_batch_size = 4\nglobal_batch_size = 64\n",
    "text/x-python": "MICRO_BATCH_SIZE = 4\nGRADIENT_ACCUMULATION_STEPS = 2\n",
    "text/x-shellscript": "#!/bin/sh\nexport TUNED_MICRO_BATCH_SIZE=4\n",
}
