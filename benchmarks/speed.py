"""How long answers take: whole commands, without a database, with an empty or with a filled one."""

import json
import os
import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common import Goal

from tuner.core.cluster import parse_cluster
from tuner.core.configuration import Checkpointing, Settings, Sharding
from tuner.core.framework import framework
from tuner.core.study import Question
from tuner.core.workload import Workload
from tuner.model import published_model as read
from tuner.space import enumerate_space

TUNER = str(Path(sys.executable).with_name("tuner"))
LLAMA = ("--model", "llama-3.1-8b", "--cluster", "8xh100-80gb",
         "--global-batch-size", "256", "--sequence-length", "4096")  # fmt: skip
MIXTRAL = ("--model", "mixtral-8x7b", "--cluster", "64x8xh100-80gb",
           "--global-batch-size", "1024", "--sequence-length", "4096")  # fmt: skip
LLAMA_NAME, MIXTRAL_NAME = "Llama-3.1-8B on 8xh100-80gb", "Mixtral-8x7B on 64x8xh100-80gb"
FIRST = "cold, making its database"
"""The first command on a fresh machine: there is no database yet, and the command makes it."""
COLD = "cold, database there"
"""No dry run and no study is known, but another command has made the database."""
CACHED = "from the cache"
"""All dry runs are known, from another study; this one is new."""
AGAIN = "asked again"
"""The study is known."""
HOW = (FIRST, COLD, CACHED, AGAIN)
CASES = 10_000
BATCHES = (64, 128, 192, 256, 512, 1024)
"""Global batches whose spaces the generated cases are drawn from."""


def suggest(question: Sequence[str], database: Path) -> dict[str, Any]:
    """One ``tuner suggest --fidelity predicted``: its seconds, and what it answered."""
    command = [TUNER, "suggest", *question, "--fidelity", "predicted", "--json"]
    seconds, said = timed(command, database)
    best = json.loads(said)["best"]
    return {
        "seconds": seconds,
        "dry_runs": dry_runs_in(database),
        "settings": best["settings"],
        "basis": best["memory"].get("basis"),
        "tokens_per_s_per_gpu": best["tokens_per_s_per_gpu"]["value"],
    }


def timed(command: Sequence[str], database: Path) -> tuple[float, str]:
    """Wall seconds of a command, and what it printed.

    Raises:
        RuntimeError: it failed; with the end of what it said.
    """
    environment = {**os.environ, "TUNER_DB": f"sqlite:///{database}"}
    # Python keeps what it has compiled, unless told otherwise: nobody compiles at each start.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    started = time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr[-800:]}")
    return time.perf_counter() - started, done.stdout


def dry_runs_in(database: Path) -> int:
    """Dry runs in a database: those of every class that was kept."""
    with sqlite3.connect(database) as connection:
        rows = connection.execute("select record from dry_runs").fetchall()
    return sum(len(json.loads(record)["traces"]) for (record,) in rows)


def suggest_lines(name: str, question: Sequence[str], runs: int) -> list[dict[str, Any]]:
    """Medians of several runs, one line for each of :data:`HOW`."""
    found: dict[str, list[dict[str, Any]]] = {how: [] for how in HOW}
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            absent, empty, filled = (Path(folder) / f"{what}.db" for what in "abc")
            found[FIRST].append(suggest(question, absent))
            for database in (empty, filled):
                timed([TUNER, "db", "upgrade"], database)
            found[COLD].append(suggest(question, empty))
            copy_dry_runs(empty, filled)
            found[CACHED].append(suggest(question, filled))
            found[AGAIN].append(suggest(question, filled))
    return [_middle(f"{name}, {how}", all_runs) for how, all_runs in found.items()]


def _middle(name: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    middle = sorted(runs, key=lambda run: run["seconds"])[len(runs) // 2]
    return {"what": name, **middle, "runs_s": [run["seconds"] for run in runs]}


def copy_dry_runs(of: Path, to: Path) -> None:
    """Give one database the dry runs of another, and no study."""
    with sqlite3.connect(to) as connection:
        connection.execute("attach ? as other", (str(of),))
        connection.execute("insert into dry_runs select * from other.dry_runs")


def predict_line(runs: int) -> dict[str, Any]:
    """``tuner predict`` on generated cases of a model that has been dry-run already."""
    lines = generated_cases()
    with tempfile.TemporaryDirectory() as folder:
        database, cases = Path(folder) / "studies.db", Path(folder) / "cases.jsonl"
        cases.write_text("".join(f"{line}\n" for line in lines))
        timed([TUNER, "db", "upgrade"], database)
        command = [TUNER, "predict", "--cases", str(cases)]
        cold, said = timed(command, database)
        seconds = [timed(command, database)[0] for _ in range(runs)]
        answers = [json.loads(line) for line in said.splitlines()]
        dry_runs = dry_runs_in(database)
    middle = statistics.median(seconds)
    bases = [(answer.get("memory") or {}).get("basis") for answer in answers]
    return {
        "what": f"tuner predict, {len(lines)} generated cases, dry runs cached",
        "seconds": middle,
        "cases_per_s": len(lines) / middle,
        "first_s": cold,
        "dry_runs": dry_runs,
        "answered": len(answers),
        "errors": sum("error" in answer for answer in answers),
        "from_dry_runs": bases.count("dry_run"),
        "runs_s": seconds,
    }


def generated_cases() -> list[str]:
    """Cases as JSON lines, drawn from the spaces of several batches.

    Every second one is of the classes that are then asked for most, and so dry-run.
    """
    drawn = random.Random(0)
    spaces = [(batch, enumerate_space(_question(batch)).legal) for batch in BATCHES]
    common = [(batch, [s for s in legal if _is_common(s)]) for batch, legal in spaces]
    lines = []
    for number in range(CASES):
        batch, legal = drawn.choice(common if number % 2 else spaces)
        workload = {"model": LLAMA[1], "sequence_length": 4096, "global_batch_size": batch}
        settings = drawn.choice(legal).as_dict()
        case = {"workload": workload, "cluster": LLAMA[3], "framework": "torch"}
        lines.append(json.dumps({**case, "settings": settings}))
    return lines


def _is_common(settings: Settings) -> bool:
    checkpointed = settings.activation_checkpointing is Checkpointing.FULL
    full = settings.sharding is Sharding.FULL_SHARD and settings.sync_each_batch
    partly = settings.sharding is Sharding.SHARD_GRAD_OP and not settings.sync_each_batch
    return settings.tp_size == 1 and (full or (partly and checkpointed))


def _question(batch: int) -> Question:
    workload = Workload(model=read(LLAMA[1]), sequence_length=4096, global_batch_size=batch)
    stack = framework("torch")
    return Question(workload=workload, cluster=parse_cluster(LLAMA[3]), framework=stack)


def lines(runs: int = 3) -> list[dict[str, Any]]:
    load = os.getloadavg()[0]
    found = [
        *suggest_lines(f"suggest, {LLAMA_NAME}", LLAMA, runs),
        *suggest_lines(f"suggest, {MIXTRAL_NAME}", MIXTRAL, runs),
        predict_line(runs),
    ]
    return [{**line, "load_before": load} for line in found]


def goals(found: Sequence[Mapping[str, Any]]) -> list[Goal]:
    by_name = {line["what"]: line for line in found}
    llama, mixtral = f"suggest, {LLAMA_NAME}", f"suggest, {MIXTRAL_NAME}"
    asked = [(f"{llama}, {how}", 15) for how in (FIRST, COLD)]
    asked += [(f"{llama}, {CACHED}", 1)]
    asked += [(f"{mixtral}, {how}", 25) for how in (FIRST, COLD)]
    seconds = [
        Goal(name=f"{what}: seconds", goal=f"<= {limit}", value=by_name[what]["seconds"])
        for what, limit in asked
    ]
    first, predict = f"{llama}, {FIRST}", found[-1]
    return [
        *seconds,
        Goal(name=f"{first}: dry runs", goal="<= 6", value=by_name[first]["dry_runs"]),
        Goal(name="predict, a model already dry-run: cases per second", goal=">= 1000",
             value=predict["cases_per_s"]),
    ]  # fmt: skip
