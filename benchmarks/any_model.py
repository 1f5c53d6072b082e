"""Types of transformers' models that a dry run follows, and real steps beside them.

    python benchmarks/any_model.py [--task masked_lm] [--jobs 2] [--only bloom opt] [--real]
    python benchmarks/any_model.py --list > tuner/catalog/task_types.toml

Each type has a tiny configuration of four layers, made of its own configuration class. ``--real``
runs a step of each on one CPU rank too, and holds its peak against the dry run's. ``--list`` prints
the catalogue of types that can be trained for other tasks than causal language modelling.
"""

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from common import Goal, report

from tuner.model.checks import LENGTH_NAMES

LAYERS, ROOT = 4, Path(__file__).parent.parent
# What a tiny configuration has, under whatever name its class has for it.
SIZES: Mapping[str, int] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "emb_dim", "embedding_size"), 64),
    **dict.fromkeys(
        ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers",
         "decoder_layers"), LAYERS,
    ),
    **dict.fromkeys(
        ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", "d_ff", "d_inner",
         "decoder_ffn_dim", "encoder_ffn_dim", "max_position_embeddings", "n_positions",
         "max_seq_len", "hidden_dim", "intermediate_dim"), 128,
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
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},  # both classes of its layers
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "mamba2": {"num_heads": 8, "head_dim": 16},
    "zamba2": {"layers_block_type": ["mamba", "hybrid"] * 2},
    "zaya": {"num_experts_per_tok": 1},
    "xlm": {"max_position_embeddings": 128, "n_words": 512},
    "flaubert": {"n_words": 512},
    "xmod": {"default_language": "en_XX"},
    "mobilebert": {"embedding_size": 32, "intra_bottleneck_size": 32, "true_hidden_size": 32},
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
# Ranks are forks of a process that has imported torch: that takes longer than their steps.
FORKS = multiprocessing.get_context("forkserver")
NEAR = 0.01
LONGEST_S = 300.0
# What begins the types of the catalogue that see images, which are written by hand.
BY_HAND = "# Whose images the probe program makes"


def configurations(task: str) -> dict[str, dict[str, Any]]:
    """A tiny configuration of each type, of the fields that its class has."""
    from transformers import CONFIG_MAPPING
    from transformers.models.auto import modeling_auto

    found: dict[str, dict[str, Any]] = {}
    for name in getattr(modeling_auto, f"MODEL_FOR_{task.upper()}_MAPPING_NAMES"):
        kind = CONFIG_MAPPING[name]
        known = {field for one in kind.__mro__ for field in getattr(one, "__annotations__", {})}
        config = {"model_type": name, **{n: size for n, size in SIZES.items() if n in known}}
        if "text_config" in getattr(kind, "sub_configs", {}):
            text = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                    "num_key_value_heads", "head_dim", "vocab_size")  # fmt: skip
            config["text_config"] = {**{field: SIZES[field] for field in text}, "pad_token_id": 0}
        if "qk_rope_head_dim" in config:  # latent attention, whose class makes its own of this
            config.pop("head_dim", None)
        if task == "sequence_classification":
            config["num_labels"] = 3
        found[name] = {**config, **MORE.get(name, {})}
    return found


def listed(name: str, config: Mapping[str, Any], task: str) -> dict[str, Any] | str:
    """What the catalogue says of a type for a task, or why it is left out."""
    import torch
    from torch import nn
    from transformers import CONFIG_MAPPING

    from workers.probe.model import build_on_meta, decoder_layers

    own = CONFIG_MAPPING[name]()
    if "vision_config" in getattr(own, "sub_configs", {}):
        return "it sees images"
    try:
        model = build_on_meta(config, torch.float32, task=task)
    except Exception as error:  # noqa: BLE001  (of any library)
        return f"a tiny one is not built: {' '.join(str(error).split())[:100]}"
    layers = decoder_layers(model)
    kinds = {type(layer).__name__ for layer in layers}
    if len(layers) != LAYERS or len(kinds) != 1:
        return (
            f"{len(layers)} layers of {len(kinds)} classes where one list of {LAYERS} is asked for"
        )
    found: dict[str, Any] = {"layer": kinds.pop()}
    longest = next((getattr(own, one, None) for one in LENGTH_NAMES if hasattr(own, one)), None)
    if isinstance(longest, int) and longest > 1:
        found["positions"] = longest
    embeddings = {n: m for n, m in model.named_modules() if isinstance(m, nn.Embedding)}
    if any("position" in n and m.padding_idx is not None for n, m in embeddings.items()):
        found["padding"] = 1 if own.pad_token_id is None else own.pad_token_id  # ESM's files say
    if not model.supports_gradient_checkpointing:
        found["checkpoints"] = False
    ends = [one for one in (model.get_input_embeddings(), model.get_output_embeddings()) if one]
    of_ends = {id(p) for end in ends for p in end.parameters()}
    owners = Counter(
        id(p)
        for module in model.modules()
        if module not in ends
        for p in module.parameters(recurse=False)
    )
    if any(count > 1 or own in of_ends for own, count in owners.items()):
        found["shards"] = False
    if not model._supports_sdpa:
        found["sdpa"] = False
    return found


def catalogue() -> str:
    import transformers

    release = ".".join(transformers.__version__.split(".")[:2])
    lines = [
        f"# Types that transformers {release} builds for other tasks than causal language models:",
        "# by benchmarks/any_model.py --list, which says of others why they are left out.",
    ]
    for task in ("masked_lm", "sequence_classification"):
        lines += ["", f"[{task}]"]
        for name, config in sorted(configurations(task).items()):
            if isinstance(one := listed(name, config, task), str):
                print(f"{task} {name}: {one}", file=sys.stderr)
            else:
                fields = (f"{field} = {json.dumps(value)}" for field, value in one.items())
                lines.append(f"{name} = {{ {', '.join(fields)} }}")
    by_hand = (ROOT / "tuner" / "catalog" / "task_types.toml").read_text().partition(BY_HAND)
    return "\n".join([*lines, "", *"".join(by_hand[1:]).splitlines()])


def dry_runs(configs: Mapping[str, Any], jobs: int, task: str) -> dict[str, dict[str, Any]]:
    """The dry-run program's answers, by type."""
    lines = [
        json.dumps(
            {"id": name, "spec": {**SPEC, "model": config, "task": task}, "micro_batch_sizes": [2],
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


def run_rank_of(spec: Path, out: Path, meet: str) -> None:
    """Run the probe program's rank in this process, which has torch already."""
    from workers.probe.run import run_probe

    # without LOCAL_RANK, of which accelerate would make several ranks' DDP
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "HF_HUB_OFFLINE": "1"}
    record, _ = run_probe(spec, meet)
    record.write(out)
    os._exit(0)


def real_peak(config: Mapping[str, Any], task: str) -> int | str:
    """Bytes of a real step's peak on one CPU rank, or how it ended."""
    with tempfile.TemporaryDirectory() as folder:
        spec, out = Path(folder, "spec.json"), Path(folder, "out")
        spec.write_text(json.dumps({**SPEC, "model": config, "task": task}))
        out.mkdir()
        rank = FORKS.Process(target=run_rank_of, args=(spec, out, f"file://{folder}/rendezvous"))
        rank.start()
        rank.join(LONGEST_S)
        if rank.is_alive():
            rank.kill()
            return f"the real step took more than {LONGEST_S:.0f} s"
        record_file = out / "rank-00000.json"
        if not record_file.exists():  # killed: a type whose tiny one is not tiny
            return "the real step ended without a record"
        record = json.loads(record_file.read_text())
    memory = record["memory"]
    return int(memory["allocated_bytes"]) if memory else str(record["error"]["message"])[:200]


def row(
    name: str, config: Mapping[str, Any], answer: Mapping[str, Any], task: str, *, real: bool
) -> Any:
    if error := answer.get("error"):
        where = " in ".join(filter(None, (error.get("operator"), error.get("phase"))))
        why = " ".join(str(error["message"]).split())[:120]
        return {"type": name, "dry_run_bytes": None, "real_bytes": None, "why": f"{why} ({where})"}
    lines = [line for part in answer["trace"]["steps"][0]["segments"] for line in part["lines"]]
    peak = max(line["bytes"][0] for line in lines)
    taken = real_peak(config, task) if real else None
    print(name, peak, taken, file=sys.stderr, flush=True)
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default="causal_lm")
    parser.add_argument("--list", action="store_true", help="print the catalogue of other tasks")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", nargs="*", help="types")
    parser.add_argument("--real", action="store_true", help="real steps too: seconds for each")
    options = parser.parse_args()
    if options.list:
        print(catalogue())
        return 0
    task = options.task
    configs = configurations(task)
    chosen = {name: configs[name] for name in options.only or sorted(configs)}
    answers = dry_runs(chosen, options.jobs, task)
    FORKS.set_forkserver_preload(["workers.probe.run", "transformers", "accelerate"])
    with ThreadPoolExecutor(options.jobs) as pool:
        rows = list(
            pool.map(
                lambda name: row(name, chosen[name], answers[name], task, real=options.real), chosen
            )
        )
    report("any_model" if task == "causal_lm" else f"any_model_{task}", goals(rows), rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
