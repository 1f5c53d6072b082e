"""Measures a cluster's rates on its own devices, and keeps them in the database.

    python -P -m workers.calibrate --db URL --cluster JSON [--quick] [--watch-fd N]

Ranks are started, time what the plan says, and their readings are fitted. Exit codes: 0 measured
and kept, 1 it could not be, 2 usage, 130 a stop was requested.
"""

import argparse
import json
import logging
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tuner.core.cluster import Cluster, Device
from tuner.core.measurement import Fidelity
from tuner.cost.calibration import Calibration, merged
from tuner.cost.calibration_fit import fitted
from tuner.errors import ProbeError
from workers.devices import DeviceLocks, check_cluster, default_lock_path, devices_here, first_gpus
from workers.launchers.local import series_argv
from workers.measuring.measure import kind_of
from workers.measuring.ranks import WarmRanks
from workers.measuring.records import default_probes_folder
from workers.stop import INTERRUPTED, StopRequest, open_fd, run_command

# From a rank's start to its last case's begin.
BUDGET_S = 80.0
# For all of it: under two minutes.
DEADLINE_S = 118.0
POLL_S = 0.1
OPERATIONS = ("all_gather", "reduce_scatter", "all_reduce")
# Layers of the two depths that a model is timed at: their difference is three layers.
FEW, MANY = 1, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    rows: int  # tokens of matrix products
    widths: tuple[int, ...]  # channels of matrix products
    copied: int  # elements that are copied: several times the last cache
    models: tuple[tuple[int, int, int, int], ...]
    """Hidden size, heads, sequence length and micro-batch size of models; the first is so small
    that a GPU waits for the host."""
    vocabulary: int
    """Tokens that the models know: as many as usual, or their logits would stay in caches."""
    updated: int
    tensors: int  # parameters that these are in: few enough that launching them is nothing
    sent: tuple[int, ...]
    """Elements of collectives, from those where latency is all to those where bandwidth is."""
    beside: tuple[int, int]  # channels of products, and elements of an all-reduce beside them
    case_s: float  # seconds for the repetitions of one case, about


CUDA = Sizes(
    rows=8192,
    widths=(512, 1024, 2048, 4096, 8192),
    copied=2**27,
    models=((64, 1, 32, 1), (1024, 8, 1024, 4), (2048, 16, 2048, 2), (4096, 32, 4096, 1)),
    vocabulary=32_000,
    updated=2**26,
    tensors=8,
    sent=(2**10, 2**15, 2**19, 2**22, 2**25, 2**27),
    beside=(4096, 2**25),
    case_s=0.5,
)
# What is larger than 32 MiB, glibc's malloc takes from the kernel at each call and gives back
# (M_MMAP_THRESHOLD in malloc/malloc.c), so all its pages are faulted in and zeroed anew. The logits
# of a usual batch and AdamW's temporaries of an embedding are that large, and timed so: smaller
# ones take as little as a quarter of the time per element.
CPU = Sizes(
    rows=512,
    widths=(128, 256, 512, 1024),
    copied=2**24,
    models=((64, 1, 32, 1), (256, 4, 128, 4), (512, 8, 256, 2)),
    vocabulary=2**15,
    updated=17 * 2**20,
    tensors=1,
    sent=(2**10, 2**16, 2**19, 2**22, 2**24),
    beside=(512, 2**21),
    case_s=0.4,
)
# To see that all of it runs; its rates mean nothing.
QUICK = Sizes(
    rows=64,
    widths=(64, 128),
    copied=2**18,
    models=((32, 1, 16, 1), (128, 2, 64, 1)),
    vocabulary=256,
    updated=2**14,
    tensors=8,
    sent=(2**8, 2**14),
    beside=(64, 2**12),
    case_s=0.01,
)


log = logging.getLogger("workers.calibrate")


def plan(cluster: Cluster, sizes: Sizes | None = None) -> dict[str, Any]:
    """The spec of a calibration, without the seconds that it may take."""
    if sizes is None:
        sizes = CPU if cluster.gpu.device is Device.CPU else CUDA
    return {
        "format": 1,
        "device": str(cluster.gpu.device),
        "world_size": cluster.world_size,
        "gpus_per_node": cluster.gpus_per_node,
        "cases": list(_cases(cluster, sizes)),
        "case_s": sizes.case_s,
    }


def _cases(cluster: Cluster, sizes: Sizes) -> Iterator[dict[str, Any]]:
    """First what every prediction needs, in the usual number format."""
    yield {"kind": "copy", "dtype": "bf16", "elements": sizes.copied}
    for dtype in ("bf16", "fp32"):
        for width in sizes.widths:
            yield {"kind": "matrix", "dtype": dtype, "rows": sizes.rows, "width": width}
        for hidden, heads, length, micro_batch in sizes.models:
            for layers in (FEW, MANY):
                yield {
                    "kind": "layers",
                    "dtype": dtype,
                    "layers": layers,
                    "micro_batch_size": micro_batch,
                    "sequence_length": length,
                    # a decoder as most are: gated MLP, rotary positions, fused attention
                    "model": {
                        "model_type": "llama",
                        "hidden_size": hidden,
                        "intermediate_size": hidden * 11 // 4,
                        "num_hidden_layers": layers,
                        "num_attention_heads": heads,
                        "num_key_value_heads": heads,
                        "vocab_size": sizes.vocabulary,
                        "max_position_embeddings": length,
                        "tie_word_embeddings": False,
                    },
                }
        update = {"elements": sizes.updated, "tensors": sizes.tensors}
        yield {"kind": "update", "dtype": dtype, **update}
        if dtype == "bf16":
            yield from _collectives(cluster, sizes)


def _collectives(cluster: Cluster, sizes: Sizes) -> Iterator[dict[str, Any]]:
    axes = {"intra": cluster.gpus_per_node, "inter": cluster.nodes}
    used = {axis: ranks for axis, ranks in axes.items() if ranks > 1}
    for axis, ranks in used.items():
        for op in OPERATIONS:
            for elements in sizes.sent:
                whole = max(1, elements // ranks) * ranks
                common = {"kind": "collective", "axis": axis, "op": op}
                yield {**common, "dtype": "bf16", "elements": whole}
    for axis in list(used)[:1]:
        width, elements = sizes.beside
        for part in ("matrix", "collective", "both"):
            yield {
                "kind": "both",
                "part": part,
                "axis": axis,
                "dtype": "bf16",
                "rows": sizes.rows,
                "width": width,
                "products": 8,
                "elements": elements,
            }


class StoppedError(Exception):
    """A stop was requested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    folder: Path = field(default_factory=default_probes_folder)
    lock: Path = field(default_factory=default_lock_path)
    """Path of the locks of devices, which are held while ranks run: a probe would spoil both."""
    quick: bool = False  # small cases only, which shows that it runs, and nothing else


def calibrate(
    cluster: Cluster, stop: StopRequest, *, options: Options | None = None
) -> Calibration:
    """Measures the cluster, which must be this machine."""
    options = options or Options()
    check_cluster(cluster)
    locks = DeviceLocks(options.lock, [device.name for device in devices_here()])
    try:
        is_waiting = False
        while not locks.acquire():
            if not is_waiting:
                log.info("waiting for a probe on this machine")
            is_waiting = True
            if why := stop.wait(POLL_S):
                raise StoppedError(why)
        is_cpu = cluster.gpu.device is Device.CPU
        gpus = () if is_cpu else first_gpus(devices_here(), cluster.world_size)
        kind = replace(kind_of(cluster, Fidelity.MEASURED), visible=gpus)
        spec = {**plan(cluster, QUICK if options.quick else None), "budget_s": BUDGET_S}
        began = time.monotonic()
        with WarmRanks(folder=options.folder, argv=series_argv) as ranks:
            found = ranks.ask(kind, spec, stop.wait, deadline_s=DEADLINE_S)
        wall_s = time.monotonic() - began
    finally:
        locks.release()
    if found is None:
        raise StoppedError(stop.wait(0))
    if found.why_unusable:
        raise ProbeError(found.why_unusable)
    try:
        return fitted(
            merged(spec["cases"], [record["readings"] for record in found.records]),
            cluster,
            versions=found.records[0]["versions"],
            at=datetime.now(UTC).isoformat(timespec="seconds"),
            wall_s=wall_s,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ProbeError(f"what the ranks timed cannot be used: {error}") from error


def main() -> int:
    from tuner.store import open_store  # calibrating needs no database

    parser = argparse.ArgumentParser(prog="python -m workers.calibrate", description=__doc__)
    parser.add_argument("--db", help="address of the database; the user's own by default")
    parser.add_argument("--cluster", required=True, help="the cluster, as JSON")
    parser.add_argument(
        "--quick", action="store_true", help="small cases only, to see that it runs"
    )
    parser.add_argument(
        "--watch-fd", type=open_fd, help="stop when this pipe's other end is closed"
    )
    command = parser.parse_args()

    def work(stop: StopRequest) -> int:
        cluster = Cluster.from_dict(json.loads(command.cluster))
        try:
            with open_store(command.db, create=False) as store:
                found = calibrate(cluster, stop, options=Options(quick=command.quick))
                store.keep_calibration(found)
        except StoppedError as why:
            log.info("%s", why)
            return INTERRUPTED
        log.info("%s is calibrated", cluster.name)
        return 0

    return run_command(work, log, command.watch_fd)


if __name__ == "__main__":
    sys.exit(main())
