"""Specs of tiny models, measured on CPU ranks, emulated by one, and dry-run, side by side."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

from tests.process.preloaded import Preloaded

PROGRAM = Path(__file__).with_name("agreement.py")
SHAPE = {
    "hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
    "intermediate_size": 256, "vocab_size": 512, "max_position_embeddings": 128,
    "num_key_value_heads": 2, "tie_word_embeddings": False,
}  # fmt: skip
MODELS = {
    "llama": {**SHAPE, "model_type": "llama"},
    "tied": {**SHAPE, "model_type": "llama", "tie_word_embeddings": True},
    "mixtral": {
        **SHAPE, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2,
    },
}  # fmt: skip
FIELDS = ("optimizer", "precision", "reduce_dtype", "device")


def spec(model: str, ranks: int, *, count: int = 2, micro: int = 2, **choices: object) -> dict:
    """A spec of the probe program; settings and fields by name."""
    settings = {
        "sharding": "ddp", "tp_size": 1, "tp_recompute_allgather": False, "pp_size": 1,
        "micro_batch_size": micro, "gradient_accumulation_steps": count, "sync_each_batch": True,
        "activation_checkpointing": "none", "cpu_offload": False,
        **{k: v for k, v in choices.items() if k not in FIELDS},
    }  # fmt: skip
    fields = {"optimizer": "adamw", "precision": "fp32", "device": "cpu"}
    fields |= {k: v for k, v in choices.items() if k in FIELDS}
    fields.setdefault("reduce_dtype", "bf16" if fields["precision"] == "bf16" else "fp32")
    return {
        "format": 1, "model": MODELS[model], "settings": settings, "sequence_length": 64,
        "global_batch_size": micro * count * ranks // settings["tp_size"], "world_size": ranks,
        "gpus_per_node": max(1, ranks // 2) if ranks > 2 else ranks, "memory_limit_bytes": None,
        "seed": 1, "accumulation_counts": [count], "warmup_steps": 3, "tracked_steps": 3,
        "measured_steps": 1, "minimum_steps": 1, "time_budget_s": 1.0, **fields,
    }  # fmt: skip


def combinations(ranks: int) -> list[dict]:
    """Specs over all knobs for a number of ranks."""
    on_off, checkpointing = (True, False), ("none", "full")
    if ranks == 2:
        kinds = ("ddp", "shard_grad_op", "full_shard")
        names = ("sharding", "sync_each_batch", "activation_checkpointing")
        cases = [dict(zip(names, c, strict=True))
                 for c in itertools.product(kinds, on_off, checkpointing)]  # fmt: skip
        specs = [spec(m, 2, **c) for m in ("llama", "mixtral") for c in cases]
        specs += [spec("tied", 2, sharding="ddp", tp_size=2, tp_recompute_allgather=on,
                       activation_checkpointing=how)
                  for on in on_off for how in checkpointing]  # fmt: skip
        specs += [spec("llama", 2, sharding=kind, optimizer=optimizer, precision=precision)
                  for kind in ("ddp", "full_shard")
                  for optimizer, precision in (("sgd", "fp32"), ("adamw", "bf16"),
                                               ("adamw", "bf16_mixed"))]  # fmt: skip
        return specs
    shapes: list[dict] = [{"sharding": "hybrid_shard"}]
    shapes += [
        {"sharding": "full_shard", "tp_size": 2, "tp_recompute_allgather": on} for on in on_off
    ]
    return [spec(m, ranks, sync_each_batch=sync, **shape)
            for m in ("llama", "mixtral") for shape in shapes for sync in on_off]  # fmt: skip


def measure(preloaded: Preloaded, folder: Path, ranks: int, specs: list[dict]) -> list[dict]:
    """Records of real CPU ranks; of one alone, where the specs are emulated."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "specs.json").write_text(json.dumps(specs))
    environment = {**os.environ, "WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1",
                   "GLOO_SOCKET_IFNAME": "lo", "HF_HUB_OFFLINE": "1"}  # fmt: skip
    command = preloaded([sys.executable, str(PROGRAM), str(folder)])
    processes = []
    for rank in range(1 if specs[0].get("fidelity") == "emulated" else ranks):
        with (folder / f"{rank}.log").open("w") as log:
            mine = {**environment, "RANK": str(rank)}
            processes.append(subprocess.Popen(command, env=mine, stdout=log, stderr=log))
    try:
        codes = [process.wait(timeout=900) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert not any(codes), (folder / "0.log").read_text()[-2000:]
    return json.loads((folder / "records.json").read_text())


def request(name: str, values: dict, **changes: object) -> dict:
    """A request for the dry run of a spec, at its own micro-batch size and count."""
    size, counts = values["settings"]["micro_batch_size"], values["accumulation_counts"]
    return {"id": name, "spec": values, "micro_batch_sizes": [size],
            "accumulation_counts": counts, **changes}  # fmt: skip


def answers(
    preloaded: Preloaded, lines: list[str], limit_s: float = 60.0, jobs: int = 2
) -> dict[str, dict]:
    """The program's answers by their ids."""
    command = preloaded([sys.executable, "-P", "-m", "workers.probe.dry",
                         "--limit-s", str(limit_s), "--jobs", str(jobs)])  # fmt: skip
    ended = subprocess.run(
        command, input="\n".join(lines), capture_output=True, text=True, timeout=900, check=False
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    return {found["id"]: found for found in map(json.loads, ended.stdout.splitlines())}


def traces(preloaded: Preloaded, requests: list[dict]) -> dict[str, dict]:
    """Traces by the requests' ids."""
    found = answers(preloaded, [json.dumps(values) for values in requests])
    wrong = {name: answer["error"] for name, answer in found.items() if "error" in answer}
    assert not wrong, wrong
    return {name: answer["trace"] for name, answer in found.items()}


def peak_bytes(trace: dict, step: int = 0, size: int = 0) -> int:
    """The highest of all lines."""
    return max(
        line["bytes"][size]
        for segment in trace["steps"][step]["segments"]
        for line in segment["lines"]
    )
