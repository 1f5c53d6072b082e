"""Predicted against torch's own CUDA allocator, without a GPU: ``make bench-cuda-allocator``.

A stand-in for CUDA's driver and libraries (``workers/standin``) is preloaded under a CUDA build
of torch: kernels do nothing, and memory is given as a GPU gives it. The caching allocator,
autograd, FSDP2 and accelerate are the real ones. So rank 0 of 8 or 64 runs its steps as it would on
an H200, and what its allocator shows is kept beside what dry run and arithmetic predict, in
``benchmarks/results/cuda-allocator.json``. A case that is there already is not run again.

It shows what torch's allocator gives and holds. It cannot show what kernels of a real GPU ask for
beside tensors, and no time.
"""

import argparse
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from common import RESULTS, Goal, as_rows, described, show, write  # noqa: E402
from dry import LIMIT_S, Dried, dry_run_all  # noqa: E402
from gpu.cases import QUICK, GpuCase, Part, Way  # noqa: E402
from gpu.goals import GIB, NOT_RUN  # noqa: E402
from gpu.place import Place  # noqa: E402
from gpu.probing import Probed, prober, why_not_here  # noqa: E402
from probe_cases import Case, case  # noqa: E402

from tuner.core.cluster import Device  # noqa: E402
from tuner.core.measurement import Outcome  # noqa: E402
from tuner.cost.prediction import Profile, predict  # noqa: E402
from tuner.dryrun import DryRunner  # noqa: E402
from workers.standin import run as standin  # noqa: E402

NAME = "cuda-allocator"
DEVICE = "torch's CUDA allocator, no GPU"
PLACE = Place(device=Device.CUDA, gpu="h200", title=DEVICE)
"""What the stand-in says it is."""
DEADLINE_S = 240.0
"""Of one probe; most take a tenth of it."""
DECIDES = ("torch", "transformers", "accelerate")
"""Packages of whose releases rows are: those of others are dropped."""

CASES = """
llama-3.2-1b   8   sharding=ddp,micro_batch_size=4
codellama-34b  8   sharding=full_shard,activation_checkpointing=full
llama-3.1-8b   8   tp_size=8,tp_recompute_allgather=true,micro_batch_size=2
mixtral-8x7b   8   sharding=full_shard,micro_batch_size=2,activation_checkpointing=full
qwen2.5-7b     8   sharding=full_shard,micro_batch_size=2  precision=bf16_mixed
gemma-7b       8   sharding=full_shard,activation_checkpointing=full
gpt2-xl        8   sharding=ddp,micro_batch_size=4  sequence_length=1024
codellama-34b  8   tp_size=8,tp_recompute_allgather=true,activation_checkpointing=full
llama-3.2-1b   64  sharding=hybrid_shard,micro_batch_size=2,gradient_accumulation_steps=2  precision=bf16_mixed
qwen3-30b-a3b  8   sharding=full_shard,activation_checkpointing=full
pythia-1.4b    8   sharding=shard_grad_op,micro_batch_size=2  sequence_length=2048
llama-3.2-1b   8   sharding=ddp,micro_batch_size=2  optimizer=adamw_8bit
llama-3.1-8b   8   sharding=full_shard,gradient_accumulation_steps=2,sync_each_batch=false,activation_checkpointing=full
codellama-34b  64  sharding=hybrid_shard,activation_checkpointing=full
llama-3.2-1b   8   sharding=full_shard,micro_batch_size=4  optimizer=sgd
llama-3.1-8b   64  sharding=full_shard,tp_size=4,micro_batch_size=2,gradient_accumulation_steps=2,sync_each_batch=false
qwen2.5-1.5b   8   sharding=shard_grad_op,micro_batch_size=4
gemma-2-9b     8   sharding=full_shard,activation_checkpointing=full
llama-2-7b     8   sharding=full_shard  precision=fp32 sequence_length=2048
llama-3.1-8b   8   sharding=full_shard,cpu_offload=true,activation_checkpointing=full
llama-3.2-1b   8   sharding=full_shard,micro_batch_size=2  precision=bf16_mixed optimizer=adamw_8bit
codellama-34b  8   sharding=full_shard,gradient_accumulation_steps=2,sync_each_batch=false,activation_checkpointing=full
llama-3.2-1b   8   sharding=ddp,micro_batch_size=2,gradient_accumulation_steps=4,sync_each_batch=false  precision=bf16_mixed
mixtral-8x7b   64  sharding=hybrid_shard,activation_checkpointing=full  precision=bf16_mixed
gpt2-xl        8   sharding=full_shard,micro_batch_size=8  sequence_length=1024 precision=bf16_mixed
llama-3.1-8b   8   sharding=full_shard
qwen3-4b       8   tp_size=2,sharding=full_shard,micro_batch_size=2
llama-3.1-8b   8   sharding=ddp,activation_checkpointing=full
codellama-34b  64  sharding=full_shard,tp_size=8,tp_recompute_allgather=true,micro_batch_size=4
pythia-6.9b    8   sharding=full_shard,micro_batch_size=2,activation_checkpointing=full  sequence_length=2048
llama-3.2-1b   8   tp_size=8,micro_batch_size=8,activation_checkpointing=full
codellama-34b  8   sharding=full_shard
qwen2.5-7b     8   sharding=ddp,activation_checkpointing=full  optimizer=sgd
llama-3.1-8b   8   sharding=shard_grad_op,micro_batch_size=2,gradient_accumulation_steps=4,activation_checkpointing=full  precision=bf16_mixed
codellama-34b  8   sharding=full_shard,micro_batch_size=4,activation_checkpointing=full  optimizer=sgd
llama-3.2-1b   64  sharding=shard_grad_op,tp_size=4,tp_recompute_allgather=true,micro_batch_size=4,gradient_accumulation_steps=2,sync_each_batch=false
codellama-34b  8   sharding=full_shard,activation_checkpointing=full  precision=bf16_mixed
gemma-2b       8   sharding=full_shard,micro_batch_size=4
llama-3.1-8b   64  sharding=full_shard,micro_batch_size=4
mistral-7b-v0.1  8   sharding=full_shard,micro_batch_size=2,activation_checkpointing=full
gpt2-large     8   sharding=ddp,micro_batch_size=4  sequence_length=1024 precision=fp32
llama-3.2-1b   8   sharding=full_shard  precision=fp32
qwen2.5-7b     8   sharding=full_shard,micro_batch_size=2  precision=fp32 sequence_length=1024
"""  # noqa: E501  (a table)
"""Model, ranks, settings and what else differs; families and shardings in turn, so that the first
few say something of each."""
COMMON = {"precision": "bf16", "sequence_length": "4096"}
"""What a line leaves out; and AdamW."""

Row = dict[str, Any]


def cases() -> list[GpuCase]:
    """All of them, as probes of a few steps."""
    lines = CASES.strip().splitlines()
    return [GpuCase(part=Part.MEMORY, case=_case(line), steps=QUICK) for line in lines]


def _case(text: str) -> Case:
    model, ranks, knobs, *stated = text.split()
    given = {**COMMON, **dict(one.split("=") for one in stated)}
    others = (f"{name}={value}" for name, value in given.items())
    return case(" ".join((model, PLACE.cluster(int(ranks)), knobs, *others)))


class Results:
    """Rows, on disk after each.

    Args:
        path: of the file; it need not be there. Rows of other releases are dropped.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.head = described(NAME, DEVICE)
        self.rows: list[Row] = []
        if path.exists():
            known = json.loads(path.read_text(encoding="utf-8"))
            versions = (known["versions"], self.head["versions"])
            if all(versions[0].get(name) == versions[1].get(name) for name in DECIDES):
                self.rows = known["rows"]

    def row(self, found: GpuCase) -> Row | None:
        """That of a case, if it is there."""
        return next((row for row in self.rows if row["key"] == found.case.text), None)

    def add(self, row: Row) -> None:
        """Keep a row, in the place of one of the same case."""
        self.rows = [one for one in self.rows if one["key"] != row["key"]] + [row]
        self.write()

    def write(self) -> None:
        """All of it, a row on each line."""
        head = json.dumps({**self.head, "goals": as_rows(goals(self.rows))}, indent=1)
        rows = ",\n".join(f"  {json.dumps(row, allow_nan=False)}" for row in self.rows)
        write(self.path, head.removesuffix("\n}") + f',\n "rows": [\n{rows}\n ]\n}}\n')


def goals(rows: Sequence[Mapping[str, Any]]) -> list[Goal]:
    found = []
    for way, limit in (("dry_run", 0.005), ("arithmetic", 0.01)):
        off = errors(rows, way)
        words = way.replace("_", " ")
        for name, take, most in (("median", median, limit / 5), ("largest", max, 2 * limit)):
            value = take(off) if off else None
            found.append(
                Goal(name=f"{words}: peak allocated, {name} error", goal=f"<= {most}", value=value)
            )
        share = sum(one <= limit for one in off) / len(off) if off else None
        found.append(Goal(name=f"{words}: share within {limit:.1%}", goal=">= 0.9", value=share))
    done = [row for row in rows if row["outcome"] == Outcome.OK]
    return [*found, Goal(name="settings compared", goal=">= 40", value=len(done))]


def errors(rows: Sequence[Mapping[str, Any]], way: str) -> list[float]:
    """Of all that ended well and were predicted in a way: how far off, as shares."""
    return [abs(row[way]["error"]) for row in rows if row["outcome"] == Outcome.OK and row[way]]


def row_of(found: GpuCase, probed: Probed | None, why: str, commit: str) -> Row:
    memory = probed.measurement.memory if probed else None
    return {
        "key": found.case.text,
        "model": found.case.workload.model.name,
        **found.case.as_dict(),
        "outcome": str(probed.measurement.outcome) if probed else NOT_RUN,
        "detail": probed.measurement.detail if probed else why,
        "allocated_bytes": memory.allocated_bytes if memory else None,
        "reserved_bytes": memory.reserved_bytes if memory else None,
        "allocation_retries": memory.allocation_retries if memory else None,
        "by_phase": dict(memory.by_phase) if memory else {},
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit,
    }


def with_predictions(row: Row, found: GpuCase, dried: Dried) -> Row:
    """A row, with what is predicted of its case."""
    dry_run, allocated = dried.of(found.case), row["allocated_bytes"]
    profile = dry_run.profile if dry_run else None
    return {
        **row,
        "dry_run": told(found, profile, allocated) if profile else None,
        "why_not_dry_run": "" if profile else dried.why_not(found.case),
        "arithmetic": told(found, None, allocated),
    }


def told(found: GpuCase, profile: Profile | None, allocated: int | None) -> dict[str, Any]:
    """A prediction, and how far it is off."""
    case = found.case
    said = predict(case.workload, case.cluster, case.framework, case.settings, profile=profile)
    value = said.allocated_bytes.value or 0.0
    error = value / allocated - 1 if allocated else None
    return {"allocated_bytes": value, "error": error, "by_phase": dict(said.by_phase)}


def run(left: Sequence[GpuCase], results: Results, *, probes: bool) -> None:
    """Run cases, or only predict anew those that are there; each is kept as soon as it is done."""
    with ExitStack() as stack:
        # before the environment is the stand-in's
        runner = stack.enter_context(DryRunner(limit_s=LIMIT_S, jobs=1))
        probe = stack.enter_context(_prober()) if probes else None
        for number, found in enumerate(left, 1):
            started = time.monotonic()
            row = results.row(found)
            if probe is not None:
                why = why_not_here(found)
                probed = None if why else probe(found, DEADLINE_S)
                row = row_of(found, probed, why, results.head["commit"])
            if row is None:
                continue
            dried = dry_run_all([found.case], runner=runner)
            row = with_predictions(row, found, dried)
            results.add(row)
            took_s = time.monotonic() - started
            print(f"{number}/{len(left)} {line(row)}, {took_s:.0f} s", flush=True)


@contextmanager
def _prober() -> Iterator[Callable[[GpuCase, float], Probed]]:
    base = {**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    os.environ.update(standin.environment({"DEVICES": 1}, base))
    with prober(Way.COLD) as probe:
        yield probe


def line(row: Row) -> str:
    if row["outcome"] != Outcome.OK:
        return f"{row['key']}: {row['outcome']} {row['detail'][:300]}"
    off = ", ".join(
        f"{way} {100 * row[way]['error']:+.2f}%" for way in ("dry_run", "arithmetic") if row[way]
    )
    size, share = row["allocated_bytes"] / GIB, row["reserved_bytes"] / row["allocated_bytes"]
    return f"{row['key']}: {size:.2f} GiB, {off}, reserved x {share:.2f}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="cuda_allocator.py", description=__doc__)
    parser.add_argument("--only", metavar="TEXT", help="cases whose line has this in it")
    parser.add_argument("--most", type=int, metavar="N", help="so many cases")
    parser.add_argument("--again", action="store_true", help="those that are there already too")
    parser.add_argument("--predict", action="store_true",
                        help="run none, but predict anew those that are there")  # fmt: skip
    parser.add_argument("--out", type=Path, default=RESULTS / f"{NAME}.json")
    options = parser.parse_args()
    if not options.predict and importlib.util.find_spec("nvidia") is None:
        print("this Python has no CUDA build of torch: make cuda-env installs one", file=sys.stderr)
        return 2
    results = Results(options.out)
    done = {row["key"] for row in results.rows if row["outcome"] == Outcome.OK}
    again = options.again or options.predict
    left = [one for one in cases() if again or one.case.text not in done]
    left = [one for one in left if not options.only or options.only in one.case.text]
    left = left[: options.most]
    run(left, results, probes=not options.predict)
    show("goals", as_rows(goals(results.rows)))
    print(f"written: {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
