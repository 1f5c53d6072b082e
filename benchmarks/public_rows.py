"""The rows of ``data/fsdp_memory.csv`` as questions of ours, and what is predicted for each."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dry import Dried
from judging import holds

from tuner.core.cluster import Cluster, parse_cluster
from tuner.core.configuration import Settings
from tuner.core.evaluation import Evaluation
from tuner.core.framework import Framework, framework
from tuner.core.study import HEADROOM
from tuner.core.workload import Optimizer, Precision, ReduceDtype, Workload
from tuner.cost.prediction import predict
from tuner.cost.script import PLAIN, Script
from tuner.model import published_model as read

DATA = Path(__file__).parent / "data" / "fsdp_memory.csv"
ISSUE_29425, DLROVER, TORCHTITAN = "transformers issue 29425", "dlrover", "torchtitan"
GIB = 2**30

DLROVER_SCRIPT = Script(use_cache=True, keeps_outputs=True)
"""What DLRover's example does beside the step, read in its source: the key-value cache of all
layers is among the model's outputs, and their name is bound anew only after the next forward."""
DLROVER_VERSIONS = {"accelerate": "0.24.0", "torch": "2.1.0", "transformers": "4.38.0"}
"""These say FSDP1, and the oldest transformers that the version table describes; its logits and
loss are those of the example's own, 4.31."""
TORCHTITAN_SCRIPT = Script(selects_every_2nd=True, one_root_unit=True)
"""What torchtitan did at the commit that its page names (9dec370): ``selective_ac_option = "op"``
in train_configs/llama3_8b.toml, ``_get_custom_policy`` and ``apply_fsdp`` in
torchtitan/parallelisms/parallelize_llama.py."""
NOTHING_STATED = "nothing"
"""The name of a question that leaves out what DLRover's script does."""
ISSUE_VERSIONS = {"accelerate": "0.28.0", "torch": "2.2.0", "transformers": "4.38.0"}
"""Of the weeks in which issue 29425 was written: FSDP1, and the first accelerate that could
synchronise on each batch."""

H100_96GB = {
    "name": "h100-96gb",
    "memory_bytes": 95 * GIB,
    "dense_bf16_flops_per_s": 989.5e12,
    "memory_bytes_per_s": 2.4e12,
}
"""torchtitan's GPUs, as its page of benchmarks describes them: 96 GB of HBM2e at 2.4 TB/s."""


@dataclass(frozen=True, kw_only=True)
class PublicRow:
    """One published run."""

    source: str
    workload: Workload
    cluster: Cluster
    stack: Framework  # what trained: FSDP1 in some
    settings: Settings
    headroom: float = HEADROOM
    script: Script = PLAIN
    measured_gib: float | None  # `None`: out of memory
    kind: str  # what was measured: nvidia-smi, reserved or allocated
    tokens_per_s: float | None = None  # per GPU, where it is known

    @property
    def framework(self) -> Framework:
        """What is dry-run: today's stack, FSDP2, whatever trained."""
        return framework("torch")

    @property
    def name(self) -> str:
        """Model, GPUs and what tells the source's rows apart."""
        of, knobs = self.workload, self.settings
        words = [of.model.name, self.cluster.name, str(of.optimizer)]
        words.append(f"accumulation {knobs.gradient_accumulation_steps}")
        if knobs.gradient_accumulation_steps > 1:
            words.append("sync on each" if knobs.sync_each_batch else "sync on last")
        if self.source == TORCHTITAN:
            words.append(f"checkpointing {knobs.activation_checkpointing}, every 2nd product")
        return ", ".join(words)


def issue_rows() -> list[PublicRow]:
    """transformers issue 29425: sequence and batch are not known, so 1 x 1024, headroom 0."""
    found = []
    for row in _rows(ISSUE_29425):
        settings = Settings.from_dict(
            {
                "sharding": row["sharding"],
                "micro_batch_size": 1,
                "gradient_accumulation_steps": int(row["gradient_accumulation_steps"]),
                "sync_each_batch": row["sync_each_batch"] != "false",
                "activation_checkpointing": "full",
            }
        )
        public = _public(row, ISSUE_29425, settings, sequence_length=1024, headroom=0.0)
        found.append(replace(public, stack=framework("accelerate", ISSUE_VERSIONS)))
    return found


def dlrover_rows(
    script: Script = DLROVER_SCRIPT, versions: Mapping[str, str] = DLROVER_VERSIONS
) -> list[PublicRow]:
    """DLRover's ATorch example: allocated peaks of FSDP1, bf16 autocast over fp32 weights.

    Args:
        script: what is said of its loop; by default all that is true.
        versions: what is said of its stack; the same.
    """
    found = []
    for row in _rows(DLROVER):
        knobs = ("sharding", "micro_batch_size", "activation_checkpointing")
        settings = Settings.from_dict({knob: row[knob] for knob in knobs})
        public = _public(row, DLROVER, settings, sequence_length=int(row["sequence_length"]))
        stack = framework("accelerate", versions)
        found.append(replace(public, stack=stack, script=script))
    return found


def dlrover_stated() -> dict[str, list[PublicRow]]:
    """DLRover's rows with fewer facts of its script, and with all; by what is stated.

    All but one state transformers 4.38, whose loss copies its logits whatever the script does.
    """
    return {
        NOTHING_STATED: dlrover_rows(PLAIN),
        "use_cache": dlrover_rows(Script(use_cache=True)),
        "keeps_outputs": dlrover_rows(Script(keeps_outputs=True)),
        "both, in transformers 5": dlrover_rows(
            versions={**DLROVER_VERSIONS, "transformers": "5.0.0"}
        ),
        "both, in transformers 4.38": dlrover_rows(),
    }


def torchtitan_rows() -> list[PublicRow]:
    """torchtitan's rows, as its selective checkpointing of operators was."""
    found = []
    for row in _rows(TORCHTITAN):
        knobs = ("sharding", "micro_batch_size", "activation_checkpointing")
        settings = Settings.from_dict({knob: row[knob] for knob in knobs})
        public = _public(row, TORCHTITAN, settings, sequence_length=int(row["sequence_length"]))
        fp32 = replace(public.workload, reduce_dtype=ReduceDtype.FP32)
        found.append(replace(public, workload=fp32, script=TORCHTITAN_SCRIPT))
    return found


def judge(row: PublicRow, dried: Dried) -> dict[str, Any]:
    """What is predicted for a row, from its dry runs and from arithmetic, beside the measured."""
    other_policy = row.script.selects_every_2nd  # the dry-run program keeps every product
    dry_run = None if other_policy else dried.of(row)
    profile = dry_run.profile if dry_run else None
    by_arithmetic = _predict(row, None)
    by_dry_run = _predict(row, profile) if profile else None
    return {
        "row": row.name,
        "measured_gib": row.measured_gib,
        "kind": row.kind,
        "dry_run": _told(row, by_dry_run) if by_dry_run else None,
        "arithmetic": _told(row, by_arithmetic),
        "why_not_dry_run": "it keeps every product" if other_policy else dried.why_not(row),
        "tokens_per_s": row.tokens_per_s,
        "predicted_tokens_per_s": by_arithmetic.tokens_per_s_per_gpu.as_dict(),
    }


def judge_stated(dried: Dried) -> list[dict[str, Any]]:
    """DLRover's rows with fewer and more facts of its script: what is predicted of each."""
    return [
        {"stated": stated, **judge(row, dried)}
        for stated, rows in dlrover_stated().items()
        for row in rows
    ]


def stated_lines(told: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For each set of facts and way: the rows' peaks in GiB, by GPUs, and the largest error."""
    rows = dlrover_rows()
    names = [f"{row.cluster.world_size} GPUs" for row in rows]
    measured = dict(zip(names, (row.measured_gib for row in rows), strict=True))
    found: list[dict[str, Any]] = [
        {"stated": "measured", "by": "", **measured, "largest_error": None}
    ]
    for stated in dict.fromkeys(row["stated"] for row in told):
        for way in ("dry_run", "arithmetic"):
            known = [row[way] for row in told if row["stated"] == stated]
            gib = {name: one and one["gib"] for name, one in zip(names, known, strict=True)}
            worst = max((abs(one["error"]) for one in known if one), default=None)
            found.append({"stated": stated, "by": way, **gib, "largest_error": worst})
    return found


def torchtitan_lines(told: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """torchtitan's rows in a table."""
    names = ("gib", "low_gib", "high_gib", "allocated_gib", "error", "inside")
    return [
        {
            "row": row["row"],
            "measured_gib": row["measured_gib"],
            **{name: row["arithmetic"][name] for name in names},
        }
        for row in told
    ]


def of_kind(prediction: Evaluation, kind: str) -> Any:
    """The predicted quantity that a measured figure is one of."""
    return {
        "nvidia-smi": prediction.device_bytes,
        "reserved": prediction.reserved_bytes,
        "allocated": prediction.allocated_bytes,
    }[kind]


def difference(rows: Sequence[Mapping[str, Any]], basis: str, row: int, other: int) -> float:
    """By how many GiB the first of two rows is above the other, as predicted."""
    return float(rows[row][basis]["gib"] - rows[other][basis]["gib"])


def slope_error(rows: Sequence[Mapping[str, Any]], basis: str) -> float:
    """Of what grows with 1/N, between the fewest and the most GPUs."""
    predicted = rows[0][basis]["gib"] - rows[-1][basis]["gib"]
    measured = rows[0]["measured_gib"] - rows[-1]["measured_gib"]
    return float(abs(predicted / measured - 1))


def _predict(row: PublicRow, profile: Any) -> Evaluation:
    return predict(
        row.workload, row.cluster, row.stack, row.settings,
        headroom=row.headroom, profile=profile, script=row.script,
    )  # fmt: skip


def _told(row: PublicRow, prediction: Evaluation) -> dict[str, Any]:
    q = of_kind(prediction, row.kind)
    fits_measured = row.measured_gib is not None
    told: dict[str, Any] = {
        "gib": q.value / GIB,
        "low_gib": q.low / GIB,
        "high_gib": q.high / GIB,
        "allocated_gib": (prediction.allocated_bytes.value or 0.0) / GIB,
        "fits": prediction.fits,
        "verdict_right": prediction.fits is fits_measured,
    }
    if row.measured_gib is not None:
        told["error"] = told["gib"] / row.measured_gib - 1
        told["inside"] = holds(q, row.measured_gib * GIB)
    return told


def _rows(source: str) -> list[dict[str, str]]:
    with DATA.open() as file:
        return [row for row in csv.DictReader(file) if row["source"].startswith(source)]


def _public(
    row: dict[str, str],
    source: str,
    settings: Settings,
    *,
    sequence_length: int,
    headroom: float = HEADROOM,
) -> PublicRow:
    cluster = _cluster(row["gpu"], int(row["gpus"]))
    batch = settings.micro_batch_size * settings.gradient_accumulation_steps * cluster.world_size
    workload = Workload(
        model=read(row["model"]),
        sequence_length=sequence_length,
        global_batch_size=batch,
        optimizer=Optimizer(row["optimizer"]),
        precision=Precision(row["precision"]),
    )
    return PublicRow(
        source=source,
        workload=workload,
        cluster=cluster,
        stack=framework("torch"),
        settings=settings,
        headroom=headroom,
        measured_gib=None if row["memory_gib"] == "OOM" else float(row["memory_gib"]),
        kind=row["memory_kind"],
        tokens_per_s=float(row["tokens_per_s_per_gpu"]) if row["tokens_per_s_per_gpu"] else None,
    )


def _cluster(gpu: str, gpus: int) -> Cluster:
    if gpu != H100_96GB["name"]:
        return parse_cluster(f"{gpus // 8}x8x{gpu}")
    alike = parse_cluster(f"{gpus // 8}x8xh100-80gb").as_dict()
    return Cluster.from_dict({**alike, "gpu": H100_96GB})
