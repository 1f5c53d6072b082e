"""Memory under DeepSpeed's ZeRO on two CPU ranks against arithmetic: ``python benchmarks/zero.py``.

``--again`` measures, and needs ``pip install deepspeed==0.19.8``, which nothing else here does.
Both ranks train a small Llama in each case, over gloo, and torch's profiler counts rank 0's
allocations as in ``profiled_rank.py``: what gloo allocates for itself is left out. Buckets are of a
size for the model. Cases and peaks are kept in ``data/zero_cpu.json``, which a test reads.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from common import Goal, described, report

from tuner.core.cluster import parse_cluster
from tuner.core.configuration import Checkpointing, Settings, Sharding
from tuner.core.workload import Precision, ReduceDtype, Workload
from tuner.cost.memory.zero import Zero, zero_memory
from tuner.launchfiles.deepspeed import NAMES, SHARDINGS
from tuner.model import read_model_config

HERE = Path(__file__).parent
RESULT = HERE / "data" / "zero_cpu.json"
DEADLINE_S = 1200.0
STEPS = 4
"""The third is the first whose trace of modules is complete, as stage 3 records it."""
MODEL = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 6,
    "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 4096,
    "max_position_embeddings": 512, "tie_word_embeddings": False,
}  # fmt: skip
LENGTH = 128
SMALL = {
    "stage3_prefetch_bucket_size": 100_000,
    "stage3_max_live_parameters": 1_000_000,
    "stage3_max_reuse_distance": 100_000,
    "stage3_param_persistence_threshold": 1_000,
}
LARGE = {
    "stage3_max_reuse_distance": 1_000_000_000,
    "stage3_max_live_parameters": 1_000_000_000,
}


def cases() -> Iterator[dict[str, Any]]:
    """What is trained: ``zero`` is DeepSpeed's own block."""

    def case(stage: int, precision: str, steps: int, **more: Any) -> dict[str, Any]:
        zero = {"stage": stage, "reduce_bucket_size": 1_000_000, **(SMALL if stage == 3 else {})}
        zero |= more.pop("zero", {})
        found = {"precision": precision, "accumulation": steps, "micro_batch": 1, "full": False}
        return {**found, **more, "zero": zero}

    for stage in range(4):
        yield case(stage, "bf16_mixed", 1)
        yield case(stage, "bf16_mixed", 2)
    yield case(0, "fp32", 2)
    for stage in (1, 2, 3):
        yield case(stage, "bf16", 2)
        yield case(stage, "fp32", 2)
        yield case(stage, "bf16_mixed", 2, zero={"overlap_comm": stage != 3})
    yield case(2, "bf16_mixed", 1, zero={"reduce_bucket_size": 500_000_000})
    yield case(2, "bf16_mixed", 1, micro_batch=4, full=True)
    yield case(3, "bf16_mixed", 1, micro_batch=4, full=True)
    yield case(3, "bf16_mixed", 1, zero=LARGE)
    defaults = {"reduce_bucket_size": 500_000_000, "stage3_prefetch_bucket_size": 50_000_000}
    defaults["stage3_param_persistence_threshold"] = 100_000
    yield case(3, "bf16_mixed", 1, zero={**LARGE, **defaults})
    yield case(3, "bf16_mixed", 1, zero={"zero_hpz_partition_size": 2})


def configuration(case: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": case["micro_batch"],
        "gradient_accumulation_steps": case["accumulation"],
        "zero_optimization": case["zero"],
        "zero_allow_untested_optimizer": True,
    }
    if case["precision"] != "fp32":
        values["bf16"] = {"enabled": True}
    if case["precision"] == "bf16":
        both = {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
        values["bf16"] |= both
    return values


def predicted(case: Mapping[str, Any]) -> dict[str, float]:
    """Bytes by phase: forward with the loss, backward, optimizer."""
    zero = dict(case["zero"])
    stage, within = zero.pop("stage"), zero.pop("zero_hpz_partition_size", 1)
    precision = Precision(case["precision"])
    narrow = precision is not Precision.FP32
    workload = Workload(
        model=read_model_config(MODEL, "small"),
        sequence_length=LENGTH,
        global_batch_size=2 * case["micro_batch"] * case["accumulation"],
        precision=precision,
        reduce_dtype=ReduceDtype.BF16 if narrow else ReduceDtype.FP32,
    )
    settings = Settings(
        sharding=SHARDINGS[stage] if within == 1 else Sharding.HYBRID_SHARD,
        micro_batch_size=case["micro_batch"],
        gradient_accumulation_steps=case["accumulation"],
        activation_checkpointing=Checkpointing.FULL if case["full"] else Checkpointing.NONE,
    )
    named = {NAMES.get(name, name): value for name, value in zero.items()}
    found = zero_memory(workload, settings, parse_cluster("cpu:2"), Zero(**named)).by_phase
    sizes = {str(phase): size for phase, size in found.items()}
    loss = sizes.pop("loss")
    return {**sizes, "forward": max(sizes["forward"], loss)}


def row(case: Mapping[str, Any], measured: Mapping[str, int]) -> dict[str, Any]:
    """A case with both peaks, in MB, and the share by which the predicted one is off."""
    guess, seen = max(predicted(case).values()), max(measured.values())
    others = {"accumulation": case["accumulation"], "micro_batch": case["micro_batch"]}
    zero = {n: v for n, v in case["zero"].items() if n != "stage" and v != SMALL.get(n)}
    return {
        "stage": case["zero"]["stage"],
        "precision": case["precision"],
        **others,
        "checkpointing": "full" if case["full"] else "none",
        "zero": " ".join(f"{name}={value}" for name, value in zero.items()),
        "predicted_mb": round(guess / 1e6, 2),
        "measured_mb": round(seen / 1e6, 2),
        "off": round(guess / seen - 1, 4),
    }


# -- a rank ---------------------------------------------------------------------------------------


def run_case(case: Mapping[str, Any]) -> Any:
    """Train, and return DeepSpeed's engine."""
    import deepspeed
    import torch
    from profiled_rank import MARK
    from torch.profiler import record_function
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    own = {name: value for name, value in MODEL.items() if name != "model_type"}
    model = LlamaForCausalLM(LlamaConfig(**own))  # type: ignore[arg-type]
    if case["precision"] != "fp32":
        model = model.to(torch.bfloat16)  # type: ignore[assignment]
    model.train()
    if case["full"]:
        model.activation_checkpointing_enable({"use_reentrant": False})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    config = configuration(case)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    tokens = torch.randint(0, 4096, (case["micro_batch"], LENGTH))
    for _ in range(STEPS):
        with record_function(MARK):
            for _ in range(case["accumulation"]):
                loss = engine(input_ids=tokens, labels=tokens, use_cache=False).loss
                engine.backward(loss)
                del loss
                engine.step()
    return engine


def run_rank(folder: Path) -> None:
    """Train all cases; rank 0 writes the peaks of each."""
    import deepspeed
    import deepspeed.ops
    import torch.distributed as dist
    from profiled_rank import peaks
    from torch.profiler import ProfilerActivity, profile

    # a compiled operator of a collective of its own, which gloo does without
    compatible = {**deepspeed.ops.__compatible_ops__, "deepspeed_shm_comm": False}
    deepspeed.ops.__compatible_ops__ = compatible
    rank, found = int(os.environ["RANK"]), []
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2
    )
    deepspeed.init_distributed("gloo")
    for case in cases():
        if rank:
            run_case(case).destroy()
            continue
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            engine = run_case(case)
        engine.destroy()
        path = folder / "trace.json"
        profiler.export_chrome_trace(str(path))
        steps = [one["peak_without_backend_bytes"] for one in peaks(json.loads(path.read_text()))]
        # the first step has no optimizer state before its end
        found.append({"case": case, "measured": {"step": max(steps[1:])}})
        (folder / "peaks.json").write_text(json.dumps(found))
    dist.barrier()
    os._exit(0)  # gloo can hang in the interpreter's shutdown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--again", action="store_true", help="measure, which needs DeepSpeed")
    given = parser.parse_args()
    if given.rank:
        run_rank(given.rank)
    if given.again:
        with tempfile.TemporaryDirectory() as name:
            argv = (sys.executable, str(HERE / "zero.py"), "--rank", name)
            shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29613"}
            own = {**os.environ, **shared, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
            ranks = [
                subprocess.Popen(argv, env={**own, "RANK": str(rank), "LOCAL_RANK": str(rank)})
                for rank in range(2)
            ]
            try:
                codes = [one.wait(DEADLINE_S) for one in ranks]
            finally:
                for one in ranks:
                    one.kill()
            if any(codes):
                raise RuntimeError(f"exit codes {codes}")
            seen = json.loads(Path(name, "peaks.json").read_text())
        RESULT.write_text(json.dumps({**described("zero_cpu"), "rows": seen}, indent=1) + "\n")
    rows = [row(one["case"], one["measured"]) for one in json.loads(RESULT.read_text())["rows"]]
    off = [one["off"] for one in rows]
    report(
        "zero",
        [
            Goal(name="most that a peak is predicted too low", goal="<= 0.04", value=-min(off)),
            Goal(name="most that a peak is predicted too high", goal="<= 0.08", value=max(off)),
        ],
        rows,
    )


if __name__ == "__main__":
    main()
