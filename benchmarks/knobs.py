"""What knobs do to memory and speed, as the pictures of ``docs/knobs.md``.

    python benchmarks/knobs.py            dry-run and predict anew, then draw (under 2 minutes)
    python benchmarks/knobs.py --draw     draw again what benchmarks/results/knobs.json holds

No device is needed. A step's memory is that of a dry run of the whole model, moment by moment;
figures beside it are what ``tuner predict`` says. It writes ``benchmarks/results/knobs.json``,
``docs/images/knob-*.svg`` and the tables of ``docs/knobs.md``.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import RESULTS, ROOT, Goal, as_rows, described, show, write
from extrapolation import Case
from knob_drawings import IMAGES, picture_of_steps, picture_of_trade
from knob_tables import filled

from tuner.dryrun import DryRunner, Trace
from tuner.dryrun.trace import Segment

RESULT = RESULTS / "knobs.json"
PAGE = ROOT / "docs" / "knobs.md"
LIMIT_S = 600.0
"""Seconds of CPU time for one dry run of a whole model."""
GIB = 2**30
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A knob's two values in settings that are alike otherwise."""

    knob: str
    values: tuple[str, str]  # the one that needs less memory first
    model: str
    cluster: str
    sequence_length: int
    global_batch_size: int
    micro_batch_size: int
    accumulation: int
    settings: str  # the others, as users write them, without the micro-batch size

    def case(self, value: str) -> Case:
        """What is dry-run."""
        return Case(
            model=self.model,
            cluster=self.cluster,
            settings=f"{self.settings},{self.knob}={value}",
            sizes=(self.micro_batch_size,),
            accumulation=self.accumulation,
            sequence_length=self.sequence_length,
        )

    def question(self, value: str) -> Row:
        """What ``tuner predict`` is asked."""
        size = f"micro_batch_size={self.micro_batch_size}"
        return _question(self, f"{self.settings},{size},{self.knob}={value}")


COMPARED = (
    Compared(
        knob="sync_each_batch",
        values=("true", "false"),
        model="codellama-34b",
        cluster="8xa100-80gb",
        sequence_length=1024,
        global_batch_size=16,
        micro_batch_size=1,
        accumulation=2,
        settings="sharding=full_shard,activation_checkpointing=full",
    ),
    Compared(
        knob="tp_recompute_allgather",
        values=("true", "false"),
        model="llama-3.1-8b",
        cluster="8xa100-80gb",
        sequence_length=4096,
        global_batch_size=16,
        micro_batch_size=8,
        accumulation=1,
        settings="sharding=full_shard,tp_size=4",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Traded:
    """Micro-batch sizes of one global batch."""

    model: str = "llama-3.1-8b"
    cluster: str = "8xh100-80gb"
    sequence_length: int = 4096
    global_batch_size: int = 128
    sizes: tuple[int, ...] = (1, 2, 4, 8, 16)

    def questions(self) -> Iterator[Row]:
        """One for each size, with and without checkpointing and deferred synchronisation."""
        for checkpointing in ("none", "full"):
            for sync in ("true", "false"):
                for size in self.sizes:
                    if sync == "true" or size < self.sizes[-1]:  # one micro-batch: nothing defers
                        yield self._question(checkpointing, sync, size)

    def _question(self, checkpointing: str, sync: str, size: int) -> Row:
        chosen = f"activation_checkpointing={checkpointing},sync_each_batch={sync}"
        return _question(self, f"sharding=full_shard,micro_batch_size={size},{chosen}")


TRADED = Traded()
NO_TENSORS = ("library_workspaces", "unsplit_blocks")
"""Categories of memory that are allocated and no tensor's: a dry run's moments are without them."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draw", action="store_true", help="only draw what is kept")
    if not parser.parse_args().draw:
        write(RESULT, as_text(measured()))
    draw(json.loads(RESULT.read_text(encoding="utf-8")))


def measured() -> Row:
    """The result file's content."""
    asked = [one.question(value) for one in COMPARED for value in one.values]
    trade = list(TRADED.questions())
    figures = predicted([*asked, *trade])
    steps = [{**row, **figures[i]} for i, row in enumerate(_steps())]
    shown = [{key: row[key] for key in row if key != "moments"} for row in steps]
    show("one optimizer step", shown)
    show("micro-batch sizes", figures[len(asked) :])
    goals = as_rows([_goal(steps)])
    show("goals", goals)
    return {**described("knobs"), "goals": goals, "steps": steps, "rows": figures[len(asked) :]}


def _goal(steps: Sequence[Row]) -> Goal:
    """What ``tuner predict`` extrapolates of tensors from shallow models, against the whole one."""
    peaks = [max(sum(moment["gib"].values()) for moment in row["moments"]) for row in steps]
    errors = [
        abs((row["allocated_value_gib"] - row["beyond_tensors_gib"]) / peak - 1)
        for row, peak in zip(steps, peaks, strict=True)
    ]
    name = "knobs: largest difference of a predicted peak from the whole model's dry run"
    return Goal(name=name, goal="<= 0.005", value=round(max(errors), 6))


def draw(result: Mapping[str, Any]) -> None:
    """Write all pictures, and the page's tables."""
    for name, text in pictures(result).items():
        write(IMAGES / name, text)
        print(f"written: docs/images/{name}")
    write(PAGE, filled(PAGE.read_text(encoding="utf-8"), result))


def pictures(result: Mapping[str, Any]) -> dict[str, str]:
    knobs = dict.fromkeys(row["knob"] for row in result["steps"])
    found = {
        f"knob-{knob.replace('_', '-')}.svg": picture_of_steps(
            [row for row in result["steps"] if row["knob"] == knob]
        )
        for knob in knobs
    }
    return {**found, "knob-micro-batch-size.svg": picture_of_trade(result["rows"])}


def predicted(questions: Sequence[Row]) -> list[Row]:
    """What ``tuner predict`` says of each, in order: with dry runs, kept nowhere."""
    with tempfile.TemporaryDirectory() as folder:
        cases = Path(folder) / "cases.jsonl"
        cases.write_text("".join(json.dumps(one) + "\n" for one in questions))
        program = "import sys; from tuner.cli import main; sys.exit(main())"
        done = subprocess.run(
            [sys.executable, "-P", "-c", program, "predict", "--cases", str(cases),
             "--dry-runs", "all", "--db", f"sqlite:///{folder}/studies.db"],
            stdout=subprocess.PIPE, check=True, text=True,
        )  # fmt: skip
    return [_figures(json.loads(line)) for line in done.stdout.splitlines()]


def _figures(answer: Row) -> Row:
    settings = answer["canonical"]
    memory, speed = answer["memory"]["allocated_gib"], answer["tokens_per_s_per_gpu"]
    breakdown = answer["memory"]["breakdown"]
    assert answer["memory"]["basis"] == "dry_run", answer
    return {
        "micro_batch_size": settings["micro_batch_size"],
        "gradient_accumulation_steps": settings["gradient_accumulation_steps"],
        "sync_each_batch": settings["sync_each_batch"],
        "activation_checkpointing": settings["activation_checkpointing"],
        "fits": answer["fits"],
        **{f"allocated_{end}_gib": round(memory[end], 2) for end in ("value", "low", "high")},
        "beyond_tensors_gib": round(sum(breakdown.get(name, 0.0) for name in NO_TENSORS), 2),
        "limit_gib": round(answer["memory"]["limit_gib"], 2),
        **{f"tokens_per_s_per_gpu_{end}": round(speed[end]) for end in ("value", "low", "high")},
    }


def _steps() -> Iterator[Row]:
    """Each value's step, moment by moment."""
    with DryRunner(limit_s=LIMIT_S) as runner:
        for one in COMPARED:
            for value in one.values:
                case = one.case(value)
                (answer,) = runner.ask([case.full_request(case.plan())])
                (step,) = Trace.from_dict(answer["trace"]).steps
                yield {
                    "knob": one.knob,
                    "value": value,
                    "model": one.model,
                    "cluster": one.cluster,
                    "sequence_length": one.sequence_length,
                    "global_batch_size": one.global_batch_size,
                    "settings": one.settings,
                    "moments": [_moment(segment) for segment in step.segments],
                }


def _moment(segment: Segment) -> Row:
    """The highest of a segment: GiB by what memory is for."""
    highest = max(segment.lines, key=lambda line: line.bytes[0])
    gib = {name: round(of[0] / GIB, 3) for name, of in sorted(highest.categories.items())}
    return {"micro_batch": segment.micro_batch, "phase": segment.phase, "gib": gib}


def _question(one: Compared | Traded, settings: str) -> Row:
    workload = {
        "model": one.model,
        "sequence_length": one.sequence_length,
        "global_batch_size": one.global_batch_size,
    }
    return {"workload": workload, "cluster": one.cluster, "settings": settings}


def as_text(result: Row) -> str:
    """JSON with a row, or a moment, on each line."""
    head = {key: value for key, value in result.items() if key not in ("steps", "rows")}
    steps = ",\n".join(_step_text(row) for row in result["steps"])
    rows = ",\n".join(f" {json.dumps(row)}" for row in result["rows"])
    return f'{json.dumps(head)[:-1]},\n"steps": [\n{steps}\n],\n"rows": [\n{rows}\n]}}\n'


def _step_text(row: Row) -> str:
    moments = ",\n".join(f"  {json.dumps(moment)}" for moment in row["moments"])
    rest = {key: value for key, value in row.items() if key != "moments"}
    return f' {json.dumps(rest)[:-1]}, "moments": [\n{moments}\n ]}}'


if __name__ == "__main__":
    main()
