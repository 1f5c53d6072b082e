"""Specs of tiny models, and ways to run them: on CPU ranks, by rank 0 alone, as dry runs."""

import json
import os
import subprocess
import sys
from pathlib import Path

LAYERS, GLOBAL_BATCH, ACCUMULATION = 4, 24, 3
SHAPE = {
    "hidden_size": 128, "num_hidden_layers": LAYERS, "num_attention_heads": 4,
    "intermediate_size": 256, "vocab_size": 512, "max_position_embeddings": 128,
    "num_key_value_heads": 2, "tie_word_embeddings": False,
}  # fmt: skip
MODELS = {
    "llama": {**SHAPE, "model_type": "llama"},
    "tied": {
        **SHAPE, "model_type": "llama", "tie_word_embeddings": True, "num_key_value_heads": 4,
    },
    "mixtral": {
        **SHAPE, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2,
    },
    "mistral": {**SHAPE, "model_type": "mistral", "sliding_window": 6},
    "qwen2": {**SHAPE, "model_type": "qwen2"},
    "qwen3": {**SHAPE, "model_type": "qwen3", "head_dim": 16},
    "qwen3_moe": {
        **SHAPE, "model_type": "qwen3_moe", "head_dim": 16, "num_experts": 4,
        "num_experts_per_tok": 2, "moe_intermediate_size": 32, "mlp_only_layers": [0],
    },
    "gpt2": {
        "model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 128,
        "n_positions": 256,
    },
}  # fmt: skip
KNOBS = {
    "sharding": "ddp", "tp_size": 1, "tp_recompute_allgather": False, "pp_size": 1,
    "micro_batch_size": 2, "gradient_accumulation_steps": 2, "sync_each_batch": True,
    "activation_checkpointing": "none", "cpu_offload": False, "defer_all_reduce": False,
    "fused_loss": False,
}  # fmt: skip
FIELDS = {
    "format": 1, "sequence_length": 32, "optimizer": "adamw", "precision": "fp32",
    "device": "cpu", "memory_limit_bytes": None, "seed": 3, "warmup_steps": 3, "tracked_steps": 2,
    "measured_steps": 4, "minimum_steps": 3,
    "time_budget_s": 1e4,  # the same number of steps at any load
}  # fmt: skip
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "HF_HUB_OFFLINE": "1"}


def spec(model, ranks=1, **choices):
    """A spec of the probe program: knobs, and fields of the spec, by name."""
    settings = {**KNOBS, **{name: choices.pop(name) for name in KNOBS if name in choices}}
    count = settings["gradient_accumulation_steps"]
    fields = {
        "accumulation_counts": [count],
        "global_batch_size": (settings["micro_batch_size"] * count * ranks // settings["tp_size"]),
        "gpus_per_node": ranks // 2 if ranks > 2 else ranks,
        **FIELDS,
        **choices,
    }
    fields.setdefault("reduce_dtype", "bf16" if fields["precision"] == "bf16" else "fp32")
    config = MODELS[model] if isinstance(model, str) else model
    return {"model": config, "settings": settings, "world_size": ranks, **fields}


def start_ranks(command, folder, ranks, world):
    """Runs a program as some ranks of ``world``, with a log each: their exit codes."""
    environment = {**os.environ, **ENVIRONMENT, "WORLD_SIZE": str(world)}
    processes = []
    for rank in ranks:
        with (folder / f"{rank}.log").open("w") as log:
            mine = {**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            processes.append(subprocess.Popen(command, env=mine, stdout=log, stderr=log))
    try:
        return [process.wait(timeout=900) for process in processes]
    finally:
        for process in processes:
            process.kill()


def run_program(preloaded, name, folder, world, ranks):
    """Runs a program beside this file as ranks of ``world``, with the folder as its argument."""
    command = preloaded([sys.executable, str(Path(__file__).with_name(name)), str(folder)])
    codes = start_ranks(command, folder, range(ranks), world)
    logs = "\n".join(path.read_text()[-2000:] for path in sorted(folder.glob("*.log")))
    assert not any(codes), logs


def measure(preloaded, folder, specs):
    """Rank 0's records of specs, all run by the same ranks (``ranks.py``)."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "specs.json").write_text(json.dumps(specs))
    world = specs[0]["world_size"]
    ranks = 1 if specs[0].get("fidelity") == "emulated" else world
    run_program(preloaded, "ranks.py", folder, world, ranks)
    return json.loads((folder / "records.json").read_text())


def request(name, values, **changes):
    """A request for the dry run of a spec, at its own micro-batch size and count."""
    return {
        "id": name, "spec": values, "micro_batch_sizes": [values["settings"]["micro_batch_size"]],
        "accumulation_counts": values["accumulation_counts"], **changes,
    }  # fmt: skip


def answers(preloaded, lines, argv=("-m", "workers.probe.dry")):
    """The answers of the dry-run program, or one in its place, by their ids in their order."""
    ended = subprocess.run(
        preloaded([sys.executable, "-P", *argv]), input="\n".join(lines), capture_output=True,
        text=True, timeout=900, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-2000:]
    return {found["id"]: found for found in map(json.loads, ended.stdout.splitlines())}


def dry_runs(preloaded, specs):
    """Traces of specs by name, each at its own size and count."""
    lines = [json.dumps(request(name, values)) for name, values in specs.items()]
    limits = ("--limit-s", "200", "--wall-s", "600")
    found = answers(preloaded, lines, ("-m", "workers.probe.dry", *limits))
    wrong = {name: answer["error"] for name, answer in found.items() if "error" in answer}
    assert not wrong, wrong
    return {name: answer["trace"] for name, answer in found.items()}


def peak_bytes(trace, step=0, size=0):
    """The highest of all lines."""
    return max(
        line["bytes"][size]
        for segment in trace["steps"][step]["segments"]
        for line in segment["lines"]
    )


def all_bytes(row):
    """Bytes of all calls of a row of collectives."""
    return int(row["bytes"][0] if isinstance(row["bytes"], list) else row["bytes"])


def peaks_agree(trace, low, high, near):
    """Compares a dry run's peak with the lowest and highest step of real ranks on CPUs.

    A rank peaks higher where gloo lets go late: each of its two threads may still hold the last
    call it made, what it sent and what it got. What DDP reduces lies in buckets that stay.
    """
    rows = [
        row
        for row in trace["steps"][0]["collectives"]
        if (row["op"], row["axis"]) != ("all_reduce", "dp")
    ]
    late = 2 * 2 * max((all_bytes(row) / row["count"] for row in rows), default=0)
    return low - max(near * low, late) <= peak_bytes(trace) <= high + near * low
