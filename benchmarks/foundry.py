"""llm-foundry's published throughput on A100-80GB as questions of ours, and what is said of it.

Sources: the README of ``llm/throughput`` in mosaicml/examples and of ``scripts/train/benchmarking``
in mosaicml/llm-foundry: nodes of 8 GPUs with 1600 Gbit/s between them, FSDP with fp32 shards and
computing in bf16, reduced in bf16 ("PURE") or fp32 ("DEFAULT"), Triton's FlashAttention, logits
that are never fp32 (``loss_fn: fused_crossentropy``). Every row ran. Constants are fitted on every
second model (``FoundryRow.fitted_on``), the others judge them.
"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from common import Goal
from judging import holds, interval_width, share, spearman

from tuner.core.cluster import Cluster, parse_cluster
from tuner.core.configuration import Settings
from tuner.core.framework import Framework, FrameworkName
from tuner.core.quantity import Quantity
from tuner.core.workload import Loss, Precision, ReduceDtype, Workload
from tuner.cost.constants import default_costs
from tuner.cost.prediction import predict
from tuner.cost.script import PLAIN, Script
from tuner.cost.time.step import step_time
from tuner.model import read_model_config

DATA = Path(__file__).parent / "data" / "llm_foundry_a100_80.csv"
# Of increasing size: neighbors are in different halves, and heads of 64 channels in both.
LENGTHS = tuple(2**n for n in range(9, 17))
FITTED = ("MPT-125m", "MPT-760m", "MPT-3b", "MPT-13b", "MPT-70b")


@dataclass(frozen=True, kw_only=True)
class FoundryRow:
    """One published run."""

    model: str
    workload: Workload
    cluster: Cluster
    settings: Settings
    tokens_per_s: float  # per GPU

    @property
    def fitted_on(self) -> bool:
        """Whether constants are fitted on it."""
        return self.model in FITTED

    @property
    def step_time_s(self) -> float:
        each = self.settings.micro_batch_size * self.settings.gradient_accumulation_steps
        return each * self.workload.sequence_length / self.tokens_per_s


def foundry_rows() -> list[FoundryRow]:
    with DATA.open() as file:
        return [_row(row) for row in csv.DictReader(file)]


def _row(row: dict[str, str]) -> FoundryRow:
    n = {name: int(value) for name, value in row.items() if value.isdigit()}
    shape = {
        # MPT's shape but for biases: learned positions, tied embeddings. transformers' own "mpt"
        # computes scores operator by operator; these runs had flash attention.
        "model_type": "gpt2",
        "activation_function": "gelu",  # one operator, as torch.nn.GELU is
        "n_layer": n["layers"],
        "n_embd": n["hidden"],
        "n_head": n["heads"],
        "n_inner": n["ffn"],
        "n_positions": n["seq_len"],
        "vocab_size": n["vocab"],
        **dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0),
    }
    pure = "PURE" in row["precision"]
    return FoundryRow(
        model=row["model"],
        workload=Workload(
            model=read_model_config(shape, row["model"]),
            sequence_length=n["seq_len"],
            global_batch_size=n["global_batch"],
            precision=Precision.BF16_MIXED,
            reduce_dtype=ReduceDtype.BF16 if pure else ReduceDtype.FP32,
            loss=Loss.OWN_DTYPE,
        ),
        cluster=parse_cluster(f"{n['n_gpus'] // 8}x8xa100-80gb"),
        settings=Settings.from_dict(
            {
                "sharding": "full_shard",
                "micro_batch_size": n["micro_batch"],
                "gradient_accumulation_steps": n["grad_accum"],
                "activation_checkpointing": row["act_ckpt"],
            }
        ),
        tokens_per_s=float(row["tokens_per_s_per_gpu"]),
    )


Told = Sequence[tuple[FoundryRow, Quantity]]


def told(*, stated: bool = True) -> list[tuple[FoundryRow, Quantity]]:
    """Each row with its predicted seconds; with transformers' loss where their own is not
    ``stated``."""
    found, torch, costs = [], FrameworkName.TORCH, default_costs()
    for row in foundry_rows():
        asked = row.workload if stated else replace(row.workload, loss=Loss.HF)
        found.append((row, step_time(asked, row.settings, row.cluster, torch, costs)[0]))
    return found


# What is said of their loss: that it is transformers', that it is of logits as they are, and that
# Composer holds its outputs through backward too (``State.outputs``).
FIT = {
    "loss not stated": (Loss.HF, PLAIN),
    "own_dtype": (Loss.OWN_DTYPE, PLAIN),
    "own_dtype, outputs kept": (Loss.OWN_DTYPE, Script(keeps_outputs=True)),
}


def fit_lines() -> list[dict[str, Any]]:
    """How many of the rows, which all ran, are said to fit, by what is stated of their loss."""
    rows, torch, found = foundry_rows(), Framework(name=FrameworkName.TORCH), []
    for name, (loss, script) in FIT.items():
        asked = [(replace(row.workload, loss=loss), row.cluster, row.settings) for row in rows]
        fits = [predict(w, c, torch, s, script=script).fits is True for w, c, s in asked]
        found.append({"stated": name, "rows": len(rows), "said_to_fit": share(fits)})
    return found


def fit_goals(rows: Sequence[Mapping[str, Any]]) -> list[Goal]:
    """What is asked where all is stated."""
    name = "llm-foundry: runs that are said to fit"
    return [Goal(name=name, goal=">= 0.97", value=rows[-1]["said_to_fit"])]


def _ratios(rows: Told) -> list[float]:
    """Predicted over measured tokens per second."""
    return [row.step_time_s / (found.value or 0.0) for row, found in rows]


def _held(rows: Told) -> Told:
    return [pair for pair in rows if not pair[0].fitted_on]


def _line(name: str, rows: Told) -> dict[str, Any]:
    ratios = _ratios(rows)
    speeds = [(ratio * row.tokens_per_s, row.tokens_per_s)
              for ratio, (row, _) in zip(ratios, rows, strict=True)]  # fmt: skip
    return {
        "rows": name,
        "n": len(rows),
        "median_error": median(abs(ratio - 1) for ratio in ratios),
        "median_ratio": median(ratios),
        "least_ratio": min(ratios),
        "greatest_ratio": max(ratios),
        "spearman": spearman(speeds),
        "inside": share([holds(found, row.step_time_s) for row, found in rows]),
        "interval_width": interval_width(found for _, found in rows),
    }


def lines(rows: Told) -> list[dict[str, Any]]:
    """The table: both halves, the judged one by length and model, and without what is stated."""
    held = _held(rows)
    found = [
        _line("fitted", [pair for pair in rows if pair[0].fitted_on]),
        _line("held", held),
        _line("held, loss not stated", _held(told(stated=False))),
    ]
    models = dict.fromkeys(row.model for row, _ in held)
    by_length = {f"{n} tokens": [p for p in held if p[0].workload.sequence_length == n]
                 for n in LENGTHS}  # fmt: skip
    by_model = {model: [pair for pair in held if pair[0].model == model] for model in models}
    return [*found, *(_line(f"held, {n}", of) for n, of in {**by_length, **by_model}.items())]


def goals(rows: Told) -> list[Goal]:
    by_name = {line["rows"]: line for line in lines(rows)}
    held = by_name["held"]
    off = {n: abs(by_name[f"held, {n} tokens"]["median_ratio"] - 1) for n in LENGTHS}
    figures = [
        ("tokens/s, median error", "<= 0.06", held["median_error"]),
        ("tokens/s, Spearman", ">= 0.99", held["spearman"]),
        *((f"tokens/s at {n} tokens, median ratio off 1", "<= 0.1", off[n]) for n in LENGTHS),
        ("tokens/s inside intervals, at least", ">= 0.75", held["inside"]),
        ("tokens/s inside intervals, at most", "<= 0.92", held["inside"]),
    ]
    return [
        Goal(name=f"llm-foundry, held: {name}", goal=goal, value=value)
        for name, goal, value in figures
    ]
