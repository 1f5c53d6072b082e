"""``tuner doctor``: what this machine can do, and what is wrong with it."""

import sys
import time
from collections.abc import Iterator

import typer

from tuner.cli.console import facts_grid, print_rows, stdout_console
from tuner.cli.errors import print_json
from tuner.cli.studies import is_there
from tuner.client.doctor import Diagnosis, diagnose
from tuner.client.worker_process import Signals, Worker
from tuner.errors import ProbeError, StoppedError
from tuner.store import open_store
from tuner.text import moment_text, size_text

POLL_S = 0.25


def run(*, check: bool, as_json: bool, db: str | None) -> int:
    """Diagnose, with ``check`` after training the guard's replicas; the exit code, 1 when something
    serious is wrong.
    """
    if check:
        _check_now(db)
    checks = []
    if is_there(db):
        with open_store(db, create=False) as store:
            checks = list(store.checks().values())
    found = diagnose(checks)
    if as_json:
        print_json(found.as_dict())
        return 0 if found.is_sound else 1
    stdout_console().print(facts_grid(_facts(found)))
    typer.echo()
    rows = (
        (one.knob, one.value, str(one.verdict), str(one.passed), str(one.failed),
         ", ".join(one.models) or "-", moment_text(one.date) if one.date else "-")
        for one in found.guard
    )  # fmt: skip
    titles = ("knob", "value", "guard", "passed", "failed", "models", "last (UTC)")
    print_rows(titles, rows, numbers="passed,failed")
    for one in found.guard:
        if one.left_open:
            typer.echo(f"{one.knob}={one.value}: {one.left_open}")
    # effects of the installed versions on knobs, each with the frameworks that it holds for
    by_text: dict[str, list[str]] = {}
    for rule in found.rules:
        when = f" under {' and '.join(rule.when)}" if rule.when else ""
        text = f"{rule.knob}={rule.value} is {rule.effect}{when}: {rule.why} ({rule.source})"
        by_text.setdefault(text, []).append(rule.framework)
    for text, frameworks in by_text.items():
        typer.echo(f"\n{', '.join(frameworks)}: {text}")
    typer.echo()
    for problem in found.problems:
        typer.echo(f"{'wrong' if problem.serious else 'note'}: {problem.what}")
        typer.echo(f"  {problem.mend}")
    if not found.problems:
        typer.echo("nothing is wrong")
    return 0 if found.is_sound else 1


def _check_now(db: str | None) -> None:
    """Have a worker check every knob, and wait for it."""
    with open_store(db) as store:
        url = store.url
    typer.echo("training small models with every knob; this takes a minute or two", err=True)
    argv = [sys.executable, "-P", "-m", "workers", "--guard"]
    with Signals() as signals, Worker(argv, {"TUNER_DB": url}) as worker:
        while (code := worker.poll()) is None and not signals.noted:
            time.sleep(POLL_S)
        if signals.noted:
            worker.stop(signals)
            raise StoppedError(signals.noted[0], "checks that were made are kept")
        if code:
            raise ProbeError(f"the checks ended with exit code {code}: {worker.last_words()}")


def _facts(found: Diagnosis) -> Iterator[tuple[str, str]]:
    yield "versions", ", ".join(f"{name} {text}" for name, text in found.versions.items())
    memory = size_text(found.device_memory_bytes)
    yield "device", f"{found.device or 'unknown'}, {memory}, {found.cores} CPU cores"
    if found.gpus:
        first = found.gpus[0]
        driver = first.get("driver") or "unknown"
        built = f"CUDA {first['cuda']}" if first.get("cuda") else "no CUDA"
        yield "driver", f"{driver}; torch {first.get('torch')} is built for {built}"
        free = (gpu for gpu in found.gpus if "free_bytes" in gpu)
        sizes = [f"{size_text(g['free_bytes'])} of {size_text(g['total_bytes'])}" for g in free]
        yield "free", ", ".join(sizes) or "unknown"
    for one in found.fidelities:
        yield one.name, f"{'yes' if one.possible else 'no'}: {one.why}"
