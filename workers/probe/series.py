"""One rank of several small probes, one after the other: starting a rank takes seconds.

    python -P -m workers.probe.series --out DIR --init-method file:///DIR/rendezvous

Specs are ``DIR/NNN/spec.json``, all of the same number of ranks, run in the order of their
names; each rank leaves its record beside each. It stops after the first that fails, since
other ranks may hang then, and its last record is in ``DIR`` too. Its place and exit codes are
those of ``python -m workers.probe``. Tensors of all fit in memory easily: nothing is limited.
"""

import argparse
import faulthandler
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from workers.probe.watch import watch_supervisor

if TYPE_CHECKING:
    from workers.probe.record import Record

RECORDED = 10


def main() -> int:
    """Run one rank; the exit code says whether all its records are of success."""
    parser = argparse.ArgumentParser(prog="python -m workers.probe.series", description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--init-method", default="env://")
    parser.add_argument("--watch-fd", type=int)
    parser.add_argument("--silence-s", type=float, default=20.0)
    options = parser.parse_args()
    faulthandler.register(signal.SIGTERM, chain=True)
    if options.watch_fd is not None:
        watch_supervisor(options.watch_fd, options.silence_s)
    outcome = run_series(options.out, options.init_method)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0 if outcome == "ok" else RECORDED)


def run_series(out: Path, init_method: str) -> str:
    """Run this process's rank of all specs under ``out``; the last record's outcome."""
    import torch.distributed as dist

    from workers.probe.record import Record, versions

    record = Record(rank=int(os.environ["RANK"]), versions=versions())
    for path in sorted(out.glob("*/spec.json")):
        record = Record(rank=record.rank, versions=record.versions)
        _run_one(path, record, init_method)
        record.write(path.parent)
        if record.outcome != "ok":
            break
    else:
        dist.barrier()  # no rank leaves while another still talks to it
    record.write(out)
    return record.outcome


def _run_one(path: Path, record: "Record", init_method: str) -> None:
    import torch.distributed as dist

    from workers.probe.device import open_device
    from workers.probe.rank import join
    from workers.probe.run import Rank
    from workers.probe.spec import read_spec
    from workers.probe.tracker import Phase

    phase, device = Phase(), None
    try:
        spec = read_spec(path)
        local_rank = int(os.environ.get("LOCAL_RANK", record.rank))
        device = open_device(spec.device, phase, local_rank=local_rank, limit_bytes=None)
        record.hardware = dict(device.hardware())
        if not dist.is_initialized():
            join(spec.world_size, record.rank, device.backend, init_method)
        Rank(spec=spec, rank=record.rank, device=device, phase=phase, record=record).run()
    except Exception as error:  # noqa: BLE001  (whatever it is becomes the record's outcome)
        record.fail(error, phase.name, device)


if __name__ == "__main__":
    main()
