"""``tuner calibrate``: measure rates of the devices here, and show them beside the catalogue's."""

import json
import sys
import time
from collections.abc import Iterator

import typer
from rich.text import Text

from tuner.cli.console import facts_grid, print_rows, stdout_console, watch_of
from tuner.cli.errors import print_json
from tuner.client.local import failure_text
from tuner.client.place import check_here
from tuner.client.request import read_cluster
from tuner.client.worker_process import Signals, Worker
from tuner.core.cluster import Cluster
from tuner.core.framework import installed_versions
from tuner.core.quantity import Quantity
from tuner.cost.calibration import Calibration
from tuner.cost.constants import default_costs
from tuner.errors import ProbeError, StoppedError
from tuner.store import open_store

# Between two looks at the worker.
POLL_S = 0.1
TERA, GIGA = 1e12, 1e9
# From which on it is told.
DISTURBED = 1.25


def run(cluster: str, *, as_json: bool, db: str | None) -> int:
    """Calibrate; the exit code."""
    asked = read_cluster(cluster)
    check_here(asked)
    with open_store(db) as store:
        typer.echo(f"calibrating {asked.name}: this takes up to two minutes", err=True)
        environment, argv = {"TUNER_DB": store.url}, calibrate_argv(asked)
        with (
            Signals() as signals,
            Worker(argv, environment) as worker,
            watch_of(as_json=as_json) as watch,
        ):
            watch.waiting("timing matrices, copies, layers, updates and collectives")
            while (code := worker.poll()) is None and not signals.noted:
                time.sleep(POLL_S)
            if signals.noted:
                worker.stop(signals)
                raise StoppedError(signals.noted[0], "nothing is kept of this calibration")
            if code:
                raise ProbeError(failure_text(code, worker.last_words()))
        found = store.calibration(asked, installed_versions())
    if found is None:
        raise ProbeError("the worker ended well, and its calibration is not in the database")
    if as_json:
        print_json({**found.as_dict(), "catalogue": asked.as_dict()})
    else:
        show_calibration(found, asked)
    return 0


def calibrate_argv(cluster: Cluster) -> list[str]:
    """The command of the worker that measures."""
    program = [sys.executable, "-P", "-m", "workers.calibrate"]
    return [*program, "--cluster", json.dumps(cluster.as_dict())]


def show_calibration(found: Calibration, cluster: Cluster) -> None:
    """Shows measured rates beside what the catalogue publishes or assumes."""
    console = stdout_console()
    console.print(Text(f"{cluster.name}, calibrated {found.at[:16]} UTC", style="bold"))
    versions = ", ".join(f"{package} {version}" for package, version in found.versions.items())
    took = f"{found.wall_s:.0f} s, {len(found.readings)} cases on {cluster.world_size} ranks"
    console.print(facts_grid([("measured with", versions), ("took", took)]), width=console.width)
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
    usual, gpu = default_costs().time, cluster.gpu
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
    for dtype, rates in found.compute.items():
        figures = (
            (f"{dtype} half rate at channels", rates.small_dim, usual.small_dim),
            (f"{dtype} layer traffic / kept", rates.traffic_factor, usual.traffic_factor),
            (f"{dtype} traffic of a logit, B", rates.logit_traffic, usual.logit_traffic),
            (f"{dtype} layer's launches, ms", 1e3 * rates.layer_host_s, 1e3 * usual.torch_host_s),
            (f"{dtype} AdamW / its traffic", rates.update_factor, usual.update_factor),
        )
        yield from (_figure(*figure) for figure in figures)
    if found.overlap_cost is not None:
        yield _figure("lost while sending", found.overlap_cost, usual.overlap_cost)


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
