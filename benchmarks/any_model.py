"""Types of transformers' causal language models that a dry run follows, and real steps beside them.

    python benchmarks/any_model.py [--jobs 2] [--only bloom opt] [--real]

Each type has a tiny configuration of four layers, made of its own configuration class. ``--real``
runs a step of each on one CPU rank too, and holds its peak against the dry run's.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common import Goal, report

LAYERS, ROOT = 4, Path(__file__).parent.parent
# What a tiny configuration has, under whatever name its class has for it.
SIZES: Mapping[str, int] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd"), 64),
    **dict.fromkeys(
        ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers",
         "decoder_layers"), LAYERS,
    ),
    **dict.fromkeys(
        ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", "d_ff", "d_inner",
         "decoder_ffn_dim", "encoder_ffn_dim", "max_position_embeddings", "n_positions",
         "max_seq_len"), 128,
    ),
    **dict.fromkeys(
        ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads",
         "decoder_attention_heads", "num_experts", "num_local_experts", "n_routed_experts",
         "moe_num_experts"), 4,
    ),
    **dict.fromkeys(
        ("num_key_value_heads", "num_kv_heads", "num_experts_per_tok", "moe_k"), 2
    ),
    **dict.fromkeys(("head_dim", "q_lora_rank", "kv_lora_rank", "v_head_dim"), 16),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim"), 8),
    **dict.fromkeys(("n_group", "topk_group"), 1),
    "vocab_size": 512, "moe_intermediate_size": 32, "pad_token_id": 0,
}  # fmt: skip
# What some types need beside: sizes whose defaults do not go with tiny ones.
MORE: Mapping[str, Mapping[str, Any]] = {
    "codegen": {"rotary_dim": 8},
    "gptj": {"rotary_dim": 8},
    "dots3_note_text": {"num_key_value_heads": 4},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "dots1": {"n_shared_experts": 1},
}
SETTINGS = {
    "sharding": "ddp", "tp_size": 1, "tp_recompute_allgather": False, "pp_size": 1,
    "micro_batch_size": 2, "gradient_accumulation_steps": 1, "sync_each_batch": True,
    "activation_checkpointing": "none", "cpu_offload": False,
}  # fmt: skip
SPEC = {
    "format": 1, "settings": SETTINGS, "world_size": 1, "gpus_per_node": 1, "sequence_length": 32,
    "global_batch_size": 2, "optimizer": "adamw", "precision": "fp32", "reduce_dtype": "fp32",
    "device": "cpu", "memory_limit_bytes": None, "seed": 3, "warmup_steps": 3, "tracked_steps": 2,
    "measured_steps": 0, "minimum_steps": 0, "time_budget_s": 0.0, "accumulation_counts": [1],
}  # fmt: skip
NEAR = 0.01


def configurations() -> dict[str, dict[str, Any]]:
    """A tiny configuration of each type, of the fields that its class has."""
    from transformers import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    found: dict[str, dict[str, Any]] = {}
    for name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        kind = CONFIG_MAPPING[name]
        known = {field for one in kind.__mro__ for field in getattr(one, "__annotations__", {})}
        config = {"model_type": name, **{n: size for n, size in SIZES.items() if n in known}}
        if "text_config" in getattr(kind, "sub_configs", {}):
            text = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                    "num_key_value_heads", "head_dim", "vocab_size")  # fmt: skip
            config["text_config"] = {field: SIZES[field] for field in text}
        found[name] = {**config, **MORE.get(name, {})}
    return found


def dry_runs(configs: Mapping[str, Any], jobs: int) -> dict[str, dict[str, Any]]:
    """The dry-run program's answers, by type."""
    lines = [
        json.dumps(
            {"id": name, "spec": {**SPEC, "model": config}, "micro_batch_sizes": [2],
             "accumulation_counts": [1]}
        )
        for name, config in configs.items()
    ]  # fmt: skip
    command = [sys.executable, "-P", "-m", "workers.probe.dry", "--jobs", str(jobs)]
    ended = subprocess.run(
        [*command, "--limit-s", "120", "--wall-s", "600"], input="\n".join(lines) + "\n",
        capture_output=True, text=True, check=True, cwd=ROOT,
    )  # fmt: skip
    return {one["id"]: one for one in map(json.loads, ended.stdout.splitlines())}


def real_peak(config: Mapping[str, Any]) -> int | str:
    """Bytes of a real step's peak on one CPU rank, or how it ended."""
    with tempfile.TemporaryDirectory() as folder:
        spec, out = Path(folder, "spec.json"), Path(folder, "out")
        spec.write_text(json.dumps({**SPEC, "model": config}))
        out.mkdir()
        rank = {
            "RANK": "0",
            "LOCAL_RANK": "0",
            "WORLD_SIZE": "1",
            "PATH": "",
            "HF_HUB_OFFLINE": "1",
        }
        subprocess.run(
            [sys.executable, "-P", "-m", "workers.probe", "--spec", str(spec), "--out", str(out),
             "--init-method", f"file://{folder}/rendezvous"],
            env=rank, capture_output=True, check=False, cwd=ROOT,
        )  # fmt: skip
        record = json.loads((out / "rank-00000.json").read_text())
    memory = record["memory"]
    return int(memory["peak_allocated_bytes"]) if memory else str(record["error"]["message"])[:200]


def row(name: str, config: Mapping[str, Any], answer: Mapping[str, Any], *, real: bool) -> Any:
    """What is printed of a type."""
    if error := answer.get("error"):
        where = " in ".join(filter(None, (error.get("operator"), error.get("phase"))))
        why = " ".join(str(error["message"]).split())[:120]
        return {"type": name, "dry_run_bytes": None, "real_bytes": None, "why": f"{why} ({where})"}
    lines = [line for part in answer["trace"]["steps"][0]["segments"] for line in part["lines"]]
    peak = max(line["bytes"][0] for line in lines)
    taken = real_peak(config) if real else None
    why = taken if isinstance(taken, str) else ""
    return {"type": name, "dry_run_bytes": peak, "real_bytes": None if why else taken, "why": why}


def goals(rows: Sequence[Mapping[str, Any]]) -> list[Goal]:
    """Of the types that are followed, and of those that a real step was run of."""
    followed = [one for one in rows if one["dry_run_bytes"]]
    both = [one for one in followed if one["real_bytes"]]
    near = [abs(one["dry_run_bytes"] / one["real_bytes"] - 1) <= NEAR for one in both]
    found = [
        Goal(name="types that a dry run follows", goal=">= 0.85", value=len(followed) / len(rows))
    ]
    if near:
        name = "of those that run, peaks within 1% of the real step's"
        found.append(Goal(name=name, goal=">= 1.0", value=sum(near) / len(near)))
    return found


def main() -> int:
    """Print the table and the goals."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", nargs="*", help="types")
    parser.add_argument("--real", action="store_true", help="real steps too: seconds for each")
    options = parser.parse_args()
    configs = configurations()
    chosen = {name: configs[name] for name in options.only or sorted(configs)}
    answers = dry_runs(chosen, options.jobs)
    rows = [row(name, chosen[name], answers[name], real=options.real) for name in chosen]
    report("any_model", goals(rows), rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
