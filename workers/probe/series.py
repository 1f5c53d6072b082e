"""One rank of several small probes, one after the other: starting a rank takes seconds."""

from pathlib import Path

from workers.probe.rank import run_rank
from workers.probe.record import Record


def run_series(out: Path, init_method: str) -> Record:
    """Run this process's rank of all specs ``out/NNN/spec.json``, and write its records.

    All are of the same number of ranks, and run in the order of their names; each has its record
    beside it. The first that fails is the last, since other ranks may hang then. The last record
    is in ``out`` too.

    Args:
        out: the folder, with one spec at least.
        init_method: of ``torch.distributed.init_process_group``.

    Returns:
        The last record.
    """
    specs = sorted(out.glob("*/spec.json"))
    assert specs, f"no specs in {out}"
    for path in specs:
        record = run_rank(path, path.parent, init_method)
        if record.outcome != "ok":
            break
    record.write(out)
    return record
