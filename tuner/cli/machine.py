"""``tuner calibrate`` and ``tuner doctor``: what devices here do, and what is wrong with them."""

import json
import sys
from collections.abc import Iterator

import typer
from rich.text import Text

from tuner.cli.console import print_facts, print_rows, stdout_console, watch_of
from tuner.cli.errors import print_json
from tuner.cli.options import CalibrateAsked, DoctorAsked
from tuner.cli.studies import is_there
from tuner.client.doctor import Diagnosis, Problem, diagnose
from tuner.client.local import failure_text
from tuner.client.place import check_here
from tuner.client.request import read_cluster
from tuner.client.worker_process import Signals, worked
from tuner.core.cluster import Cluster
from tuner.core.framework import installed_versions
from tuner.core.quantity import Quantity
from tuner.cost.calibration import Calibration
from tuner.cost.constants import default_costs
from tuner.errors import ProbeError, StoreError
from tuner.store import open_store
from tuner.text import moment_text, size_text

TERA, GIGA = 1e12, 1e9
# From which on it is told.
DISTURBED = 1.25


def calibrate(asked: CalibrateAsked) -> int:
    cluster = read_cluster(asked.cluster)
    check_here(cluster)
    with open_store(asked.db) as store:
        typer.echo(f"calibrating {cluster.name}: this takes up to two minutes", err=True)
        with watch_of(as_json=asked.json) as watch:
            watch.waiting("timing matrices, copies, layers, updates and collectives")
            kept = "nothing is kept of this calibration"
            code, words = worked(calibrate_argv(cluster), {"TUNER_DB": store.url}, Signals(), kept)
        if code:
            raise ProbeError(failure_text(code, words))
        found = store.calibration(cluster, installed_versions())
    if found is None:
        raise ProbeError("the worker ended well, and its calibration is not in the database")
    if asked.json:
        print_json({**found.as_dict(), "catalogue": cluster.as_dict()})
    else:
        _show_calibration(found, cluster)
    return 0


def calibrate_argv(cluster: Cluster) -> list[str]:
    program = [sys.executable, "-P", "-m", "workers.calibrate"]
    return [*program, "--cluster", json.dumps(cluster.as_dict())]


def _show_calibration(found: Calibration, cluster: Cluster) -> None:
    """Shows measured rates beside what the catalogue publishes or assumes."""
    console = stdout_console()
    console.print(Text(f"{cluster.name}, calibrated {found.at[:16]} UTC", style="bold"))
    versions = ", ".join(f"{package} {version}" for package, version in found.versions.items())
    took = f"{found.wall_s:.0f} s, {len(found.readings)} cases on {cluster.world_size} ranks"
    print_facts(console, [("measured with", versions), ("took", took)])
    console.print()
    titles = ("rate", "measured", "80% interval", "catalogue", "measured / catalogue")
    print_rows(titles, _rows(found, cluster), numbers=",".join(titles[1:]))
    console.print()
    if found.disturbance > DISTURBED:
        told = f"A typical call took {found.disturbance:.2f} times as long as its shortest"
        advice = "other work disturbed it. Calibrate again when the machine is idle"
        console.print(f"{told}: {advice}.", soft_wrap=True)
    console.print("Predictions for such devices use these rates from now on.", soft_wrap=True)


Row = tuple[str, str, str, str, str]


def _rows(found: Calibration, cluster: Cluster) -> Iterator[Row]:
    usual, gpu = default_costs(), cluster.gpu
    peaks = {"bf16": gpu.dense_bf16_flops_per_s, "fp32": gpu.fp32_flops_per_s}
    for dtype, rates in found.compute.items():
        yield _rate(f"{dtype} matrices, TFLOP/s", rates.flops_per_s, peaks[dtype], TERA)
    yield _rate("memory, GB/s", found.memory_bytes_per_s, gpu.memory_bytes_per_s, GIGA)
    published = {"intra": cluster.intra_node, "inter": cluster.inter_node}
    for name, link in found.links.items():
        known = published[name]
        yield _rate(f"{name}-node link, GB/s", link.bytes_per_s, known.bytes_per_s, GIGA)
        latency = None if known.latency_s is None else 1e6 * known.latency_s
        yield _figure(f"{name}-node ring step, us", 1e6 * link.latency_s, latency)
        for op, factor in link.factors.items():
            yield _figure(f"{name}-node {op.replace('_', '-')} / its ring", factor, 1.0)
    torch = usual.torch
    for dtype, rates in found.compute.items():
        figures = (
            (f"{dtype} small_dim, channels", rates.small_dim, torch.small_dim),
            (f"{dtype} layer / its traffic", rates.traffic_factor, torch.traffic_factor),
            (f"{dtype} traffic of a logit, B", rates.logit_traffic, torch.logit_traffic),
            (f"{dtype} layer's launches, ms", 1e3 * rates.layer_host_s, 1e3 * torch.layer_host_s),
            (f"{dtype} AdamW / its traffic", rates.update_factor, torch.update_factor),
        )
        yield from (_figure(*figure) for figure in figures)
    if found.overlap_cost is not None:
        yield _figure("lost while sending", found.overlap_cost, usual.time.overlap_cost)


def _rate(name: str, found: Quantity, published: float | None, unit: float) -> Row:
    value, low, high = found.value, found.low, found.high
    assert value is not None  # it was measured
    assert low is not None
    assert high is not None
    usual = None if published is None else published / unit
    return _figure(name, value / unit, usual, f"{low / unit:.4g} to {high / unit:.4g}")


def _figure(name: str, found: float, usual: float | None, interval: str = "") -> Row:
    if usual is None:
        return name, f"{found:.4g}", interval, "unknown", ""
    return name, f"{found:.4g}", interval, f"{usual:.4g}", f"{found / usual:.3f}" if usual else ""


def diagnose_machine(asked: DoctorAsked) -> int:
    """Diagnose, if asked after training the guard's replicas; the exit code, 1 when something
    serious is wrong.
    """
    if asked.run:
        with open_store(asked.db) as store:
            url = store.url
        typer.echo("training small models with every knob; this takes a minute or two", err=True)
        argv = [sys.executable, "-P", "-m", "workers", "--guard"]
        code, words = worked(argv, {"TUNER_DB": url}, Signals(), "checks that were made are kept")
        if code:
            raise ProbeError(f"the checks ended with exit code {code}: {words}")
    checks, beside = [], []
    try:
        if is_there(asked.db):
            with open_store(asked.db, create=False) as store:
                checks = list(store.checks().values())
    except StoreError as error:  # the machine is diagnosed all the same
        mend = "until then nothing is kept or read there"
        beside = [Problem(what=str(error), mend=mend, serious=True)]
    found = diagnose(checks, beside=beside)
    if asked.json:
        print_json(found.as_dict())
        return 0 if found.is_sound else 1
    print_facts(stdout_console(), _facts(found))
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
