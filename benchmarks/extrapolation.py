"""Peaks extrapolated from shallow dry runs, against dry runs of the whole model.

    python benchmarks/extrapolation.py [--limit-s 600] [--jobs 2] [--only mixtral]

Each case is one class of settings: it is dry-run as ``tuner`` does it (two shallow depths, two
micro-batch sizes), and at full depth with two micro-batch sizes of its own.
"""

import argparse
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from common import Goal, report

from tuner.core.cluster import parse_cluster
from tuner.core.configuration import Settings, parse_settings
from tuner.core.framework import framework
from tuner.core.workload import Optimizer, Precision, ReduceDtype, Workload
from tuner.dryrun import (
    DryRun,
    DryRunner,
    DryRunPlan,
    Profile,
    Trace,
    dry_run_versions,
    plan_dry_runs,
)
from tuner.model import published_model as read

GOAL = 0.005
"""Relative error of a peak."""
FULL_LIMIT_S = 600.0
"""Seconds for one dry run of a whole model, on a machine that does other things too."""
GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Case:
    """A class of settings, and what it is checked at."""

    model: str  # of the catalogue
    cluster: str  # as users write it
    settings: str  # the class, as users write it
    sizes: tuple[int, ...]  # micro-batch sizes of the dry run at full depth
    accumulation: int = 1  # micro-batches of its optimizer step
    sequence_length: int = 2048  # tokens of a sequence
    optimizer: Optimizer = Optimizer.ADAMW
    precision: Precision = Precision.BF16
    reduce_dtype: ReduceDtype | None = None

    @property
    def workload(self) -> Workload:
        """What is trained; the batch is of no meaning here."""
        return Workload(
            model=read(self.model),
            sequence_length=self.sequence_length,
            global_batch_size=1,
            optimizer=self.optimizer,
            precision=self.precision,
            reduce_dtype=self.reduce_dtype,
        )

    def plan(self) -> DryRunPlan:
        """The shallow dry runs of the class."""
        return plan_dry_runs(
            self.workload,
            parse_cluster(self.cluster),
            framework("torch"),
            self.class_settings,
            dry_run_versions(),
        )

    @property
    def class_settings(self) -> Settings:
        return parse_settings(self.settings)

    def full_request(self, plan: DryRunPlan) -> dict[str, Any]:
        """The dry run of the whole model."""
        like = plan.requests[0]
        return {
            "id": f"{plan.key}:whole",
            "spec": {**like["spec"], "model": self.workload.model.as_config()},
            "micro_batch_sizes": list(self.sizes),
            "accumulation_counts": [self.accumulation],
        }


def _cases(model: str, cluster: str, rows: Iterable[tuple[Any, ...]]) -> list[Case]:
    """Cases of one model and cluster: settings, sizes, accumulation, and other fields."""
    found = []
    for settings, sizes, accumulation, *more in rows:
        other = more[0] if more else {}
        sequence = {"sequence_length": 256} if model.startswith("stories") else {}
        found.append(
            Case(
                model=model,
                cluster=cluster,
                settings=settings,
                sizes=sizes,
                accumulation=accumulation,
                **{**sequence, **other},
            )
        )
    return found


MIXED = {"precision": Precision.BF16_MIXED}
FP32 = {"precision": Precision.FP32}
SGD = {"optimizer": Optimizer.SGD}
EIGHT_BIT = {"optimizer": Optimizer.ADAMW_8BIT}
WIDE_REDUCE = {"reduce_dtype": ReduceDtype.FP32}
FULL = "activation_checkpointing=full"
NO_SYNC = "sync_each_batch=false"
TP = "tp_recompute_allgather=true"

CASES: Sequence[Case] = (
    *_cases(
        "stories110m",
        "cpu:2",
        [
            ("sharding=ddp", (1, 8), 1, FP32),
            (f"sharding=ddp,{NO_SYNC},{FULL}", (2, 4), 2, MIXED),
            (f"sharding=full_shard,{FULL}", (1, 8), 2, FP32),
            (f"sharding=full_shard,{NO_SYNC}", (4, 8), 3, FP32),
            ("sharding=shard_grad_op", (3, 8), 2, MIXED),
            (f"sharding=ddp,tp_size=2,{TP}", (2, 8), 1, FP32),
        ],
    ),
    *_cases(
        "stories110m",
        "2x4xa100-80gb",
        [
            (f"sharding=hybrid_shard,{NO_SYNC}", (1, 8), 2),
            (f"sharding=full_shard,tp_size=2,{FULL}", (2, 4), 1, MIXED),
            ("sharding=shard_grad_op", (4, 8), 4, EIGHT_BIT),
            (f"sharding=shard_grad_op,{NO_SYNC}", (1, 4), 4, WIDE_REDUCE),
        ],
    ),
    *_cases(
        "llama-3.1-8b",
        "8xh100-80gb",
        [
            ("sharding=full_shard", (1, 8), 1),
            (f"sharding=full_shard,{FULL}", (2, 8), 2, MIXED),
            (f"sharding=full_shard,{FULL},{NO_SYNC}", (1, 4), 2),
            (f"sharding=shard_grad_op,{FULL},{NO_SYNC}", (2, 8), 3, WIDE_REDUCE),
            ("sharding=shard_grad_op", (1, 4), 1, MIXED),
            (f"sharding=ddp,{FULL}", (1, 8), 1, SGD),
            (f"sharding=full_shard,tp_size=2,{TP}", (2, 8), 1),
            (f"sharding=full_shard,tp_size=4,{FULL},{NO_SYNC}", (1, 4), 2),
            (f"sharding=ddp,tp_size=8,{FULL},{TP}", (2, 8), 1, MIXED),
            (f"sharding=full_shard,{FULL}", (4, 8), 1, EIGHT_BIT),
            (f"sharding=full_shard,{NO_SYNC}", (1, 2), 2, {**FP32, **SGD}),
        ],
    ),
    *_cases(
        "llama-3.1-8b",
        "4x8xh100-80gb",
        [
            (f"sharding=hybrid_shard,{FULL}", (1, 8), 1, {**MIXED, **WIDE_REDUCE}),
            (f"sharding=hybrid_shard,tp_size=2,{NO_SYNC}", (2, 4), 2),
        ],
    ),
    *_cases(
        "mixtral-8x7b",
        "8xh100-80gb",
        [
            ("sharding=full_shard", (1, 8), 1),
            (f"sharding=full_shard,{FULL},{NO_SYNC}", (1, 4), 2),
            (f"sharding=shard_grad_op,{FULL}", (2, 8), 2, {**MIXED, **SGD}),
        ],
    ),
    *_cases(
        "mixtral-8x7b",
        "2x8xh100-80gb",
        [
            (f"sharding=full_shard,{FULL}", (1, 8), 1),
            (f"sharding=full_shard,tp_size=2,{FULL},{TP}", (2, 4), 1),
            (f"sharding=hybrid_shard,{FULL},{NO_SYNC}", (1, 4), 2),
        ],
    ),
    *_cases(
        "mixtral-8x7b",
        "8x8xh100-80gb",
        [
            (f"sharding=full_shard,{FULL}", (1, 8), 1, MIXED),
            (f"sharding=full_shard,{NO_SYNC}", (2, 4), 2),
            (f"sharding=full_shard,tp_size=4,{FULL}", (2, 8), 2, EIGHT_BIT),
        ],
    ),
    *_cases("gemma-2-2b", "8xa100-80gb", [(f"sharding=full_shard,{NO_SYNC},{FULL}", (1, 4), 3)]),
    *_cases("smollm3-3b", "8xa100-80gb", [("sharding=shard_grad_op", (1, 8), 1)]),
    *_cases("qwen3-30b-a3b", "8xh100-80gb", [(f"sharding=full_shard,{FULL}", (1, 8), 1)]),
)


def rows(
    limit_s: float = FULL_LIMIT_S, jobs: int | None = None, only: str = ""
) -> list[dict[str, Any]]:
    """One row for each case and micro-batch size; a case that could not be run has its error."""
    cases = [case for case in CASES if only in case.model]
    plans = [case.plan() for case in cases]
    asked = {request["id"]: request for plan in plans for request in plan.requests}
    for case, plan in zip(cases, plans, strict=True):
        asked[f"{plan.key}:whole"] = case.full_request(plan)
    answers = _answers(list(asked.values()), limit_s, jobs)
    return [
        row
        for case, plan in zip(cases, plans, strict=True)
        for row in _rows_of(case, plan, answers)
    ]


def _answers(
    requests: Sequence[Mapping[str, Any]], limit_s: float, jobs: int | None
) -> dict[str, dict[str, Any]]:
    answers: dict[str, dict[str, Any]] = {}
    with DryRunner(limit_s=limit_s, jobs=jobs) as runner:
        for answer in runner.ask(requests):
            answers[answer["id"]] = answer
            print(f"{len(answers)} of {len(requests)} dry runs", file=sys.stderr, flush=True)
    return answers


def _rows_of(
    case: Case, plan: DryRunPlan, answers: Mapping[str, dict[str, Any]]
) -> list[dict[str, Any]]:
    shallow = DryRun.from_answers(plan, [answers[request["id"]] for request in plan.requests])
    whole = answers[f"{plan.key}:whole"]
    named = {
        "model": case.model,
        "cluster": case.cluster,
        "settings": _short(case),
        "depths": "+".join(map(str, plan.depths)),
        "accumulation": case.accumulation,
    }
    if error := shallow.error or whole.get("error"):
        return [{**named, **_nothing(str(error))}]
    assert shallow.profile is not None
    full = Profile.from_traces([Trace.from_dict(whole["trace"])], plan.layers)
    return [{**named, **_compared(shallow.profile, full, case, size)} for size in case.sizes]


def _compared(extrapolated: Profile, full: Profile, case: Case, size: int) -> dict[str, Any]:
    guess = extrapolated.peak(size, case.accumulation)
    truth = full.peak(size, case.accumulation)
    phases = [abs(guess.by_phase[name] / truth.by_phase[name] - 1) for name in truth.by_phase]
    return {
        "micro_batch_size": size,
        "extrapolated_gib": guess.total_bytes / GIB,
        "full_depth_gib": truth.total_bytes / GIB,
        "error": guess.total_bytes / truth.total_bytes - 1,
        "largest_phase_error": max(phases),
        "phase": truth.phase,
        "collectives": _same_collectives(extrapolated, full, case, size),
    }


def _same_collectives(extrapolated: Profile, full: Profile, case: Case, size: int) -> str:
    """Whether counts are equal, and how far bytes are off at most."""
    found = [
        {
            (c.op, c.axis, c.phase, c.overlap): (c.count, c.bytes)
            for c in profile.collectives(size, case.accumulation)
        }
        for profile in (extrapolated, full)
    ]
    if {k: c for k, (c, _) in found[0].items() if c} != {k: c for k, (c, _) in found[1].items()}:
        return "counts differ"
    off = [abs(found[0][kind][1] / max(1, sent) - 1) for kind, (_, sent) in found[1].items()]
    return f"equal, bytes within {max(off, default=0.0):.1g}"


def _nothing(error: str) -> dict[str, Any]:
    names = ("micro_batch_size", "extrapolated_gib", "full_depth_gib", "error")
    return {**dict.fromkeys(names), "largest_phase_error": None, "phase": error, "collectives": ""}


def _short(case: Case) -> str:
    """Settings without what is the default, and the workload's formats."""
    plain = case.class_settings.as_dict()
    default = Settings().as_dict()
    live = [f"{k}={v}" for k, v in plain.items() if v != default[k] or k == "sharding"]
    formats = [str(case.optimizer), str(case.precision), *filter(None, [case.reduce_dtype])]
    return ",".join([*live, *formats])


def goals(found: Sequence[Mapping[str, Any]]) -> list[Goal]:
    errors = [abs(row["error"]) for row in found if row["error"] is not None]
    unknown = sum(row["error"] is None for row in found)
    models = len({row["model"] for row in found})
    return [
        Goal(name="settings compared", goal=">= 50", value=len(errors)),
        Goal(name="models", goal=">= 3", value=models),
        Goal(
            name="largest error of an extrapolated peak",
            goal=f"<= {GOAL}",
            value=max(errors, default=1.0),
        ),
        Goal(name="settings without an answer", goal="<= 0", value=unknown),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit-s", type=float, default=FULL_LIMIT_S)
    parser.add_argument("--jobs", type=int, default=None)
    parser.add_argument("--only", default="", help="models whose name holds this")
    options = parser.parse_args()
    started = time.perf_counter()
    found = rows(options.limit_s, options.jobs, options.only)
    seconds = round(time.perf_counter() - started)
    report("extrapolation", goals(found), found, {"seconds": seconds})


if __name__ == "__main__":
    main()
