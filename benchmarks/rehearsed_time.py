"""Step times of rehearsed scripts against the product's own, and published ones.

Scripts of ``tests/cuda/scripts`` are rehearsed, and a step priced by what it launched; beside it is
the prediction for the same step of the built-in one, which no script is run for, and for the
Trainer's rows the speed that others published as measured (``data/lora_a100.csv``).
``make bench-rehearsed-time``; ``benchmarks/results/rehearsed_time.json``.
"""

import argparse
import csv
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from common import Goal, report  # noqa: E402
from probe_cases import Case, case  # noqa: E402

import tuner  # noqa: E402
from tuner.core.adapter import Adapter, AdapterMethod  # noqa: E402
from tuner.cost.prediction import predict  # noqa: E402
from tuner.machine import why_no_standin  # noqa: E402

SCRIPTS = ROOT / "tests" / "cuda" / "scripts"
PUBLISHED = ROOT / "benchmarks" / "data" / "lora_a100.csv"
SEQUENCE = 4096
FSDP1 = (
    "accelerate launch --num_processes 2 --use_fsdp --fsdp_version 1 --mixed_precision no"
    " --fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP"
    " --fsdp_transformer_layer_cls_to_wrap MistralDecoderLayer --fsdp_use_orig_params true"
)
WITHIN = 0.2
STEPS = 2  # whose memory is not looked at; the one after them is timed


def plain() -> Iterator[tuple[str, Case, float | None]]:
    """Commands of plain loops, each with the same step of the product's, and nothing published."""
    llama = "llama-3.1-8b 8xh100-80gb sharding=full_shard,micro_batch_size=2"
    rest = "precision=bf16 sequence_length=4096"
    torchrun = "torchrun --nproc-per-node 8 plain.py"
    yield torchrun, case(f"{llama} {rest}"), None
    checkpointed = f"{llama},activation_checkpointing=full {rest}"
    yield f"{torchrun} --checkpoint", case(checkpointed), None
    for model in ("gpt2", "tinyllama-1.1b"):
        same = f"{model} 8xa100-80gb sharding=ddp,micro_batch_size=8 precision=bf16_mixed"
        ddp = f"{torchrun} --model {model} --ddp --micro 8 --sequence 1024"
        yield ddp, case(f"{same} sequence_length=1024"), None


def published() -> Iterator[tuple[str, Case, float | None]]:
    """The same of Mistral-7B by the Trainer, with tokens a second and GPU as published."""
    with PUBLISHED.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["table"] == "a100_80gb.csv"
                and row["method"] in ("full", "lora") and not row["fused_kernels"]]  # fmt: skip
    for row in rows:
        gpus, micro, lora = int(row["n_gpus"]), int(row["micro_batch"]), row["method"] == "lora"
        of = f"mistral-7b-v0.2 {gpus}xa100-80gb sharding={'full_shard' if gpus > 1 else 'ddp'}"
        knobs = f"{of},micro_batch_size={micro},activation_checkpointing=full"
        same = case(f"{knobs} precision=bf16 sequence_length={SEQUENCE}")
        if lora:
            targets = ("q_proj", "k_proj", "v_proj", "o_proj")
            adapter = Adapter(method=AdapterMethod.LORA, rank=16, alpha=16, dropout=0.1,
                              target_modules=targets)  # fmt: skip
            same = replace(same, workload=replace(same.workload, adapter=adapter))
        launch = FSDP1 if gpus > 1 else "python"
        command = f"{launch} trainer.py --micro {micro}{' --lora' * lora}"
        yield command, same, float(row["tokens_per_s_per_gpu"])


def row_of(command: str, same: Case, speed: float | None) -> dict[str, Any]:
    """A rehearsed step's seconds beside the product's own and the published ones."""
    found = tuner.rehearse(command.split(), cluster=same.cluster, steps=STEPS)
    (rank,) = found.ranks
    time = rank["time"]
    if time["unknown"]:
        raise SystemExit(f"{command}: {time['unknown']}")
    step = time["step_time_s"]["value"]
    own = predict(same.workload, same.cluster, same.framework, same.settings).step_time_s.value
    assert own is not None
    row = {
        "script": command.partition(".py")[0].split()[-1] + command.partition(".py")[2],
        "model": same.workload.model.name,
        "cluster": same.cluster.name,
        "rehearsed_s": round(step, 4),
        "own_s": round(own, 4),
        "off_own": round(step / own - 1, 4),
        "exposed_s": round(time["exposed_s"]["value"], 5),
        "took_s": round(rank["wall_s"], 1),
    }
    if speed:
        measured = time["tokens_per_step"] / same.cluster.world_size / speed
        row |= {"published_s": round(measured, 4), "off_published": round(step / measured - 1, 4)}
    return row


def goals(rows: Sequence[Mapping[str, Any]]) -> list[Goal]:
    found = []
    for name, words in (("off_own", "the product's own"), ("off_published", "published ones")):
        off = [abs(row[name]) for row in rows if name in row]
        what = f"rehearsed step times against {words}"
        middle, worst = (median(off), max(off)) if off else (None, None)
        found.append(Goal(name=f"{what}, largest difference", goal=f"<= {WITHIN}", value=worst))
        found.append(Goal(name=f"{what}, median", goal="<= 0.1", value=middle))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="rehearsed_time.py", description=__doc__)
    parser.add_argument("--most", type=int, metavar="N", help="so many scripts")
    options = parser.parse_args()
    if why := why_no_standin():
        print(f"{why}: make cuda-env installs what it needs", file=sys.stderr)
        return 2
    os.environ["PYTHONPATH"] = f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"
    os.chdir(SCRIPTS)
    rows = []
    for one in [*plain(), *published()][: options.most]:
        rows.append(row_of(*one))
        print(rows[-1], file=sys.stderr, flush=True)
    report("rehearsed_time", goals(rows), rows, {"device": "no GPU: priced by arithmetic"})
    return 0


if __name__ == "__main__":
    sys.exit(main())
