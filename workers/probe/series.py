"""One rank of several probes, one after the other: starting a rank takes seconds."""

import sys
from pathlib import Path

from workers.probe.between import Between
from workers.probe.device import Device
from workers.probe.orders import SPEC, SPENT, header, orders
from workers.probe.rank import run_probe
from workers.probe.record import Record
from workers.probe.rendezvous import rendezvous

ALLOWED_BYTES = 8 * 2**20
"""Of all probes together, that may stay in use on the device between two: tables that libraries
keep. More may be a leak, which the next probe would pay for."""


def run_series(out: Path, how: str = "file") -> Record:
    """Run this process's rank of every order in ``out``, and write its records.

    All are of the same number of ranks, fidelity and device. Each joins its own process group
    and has its record beside its spec, written when what the probe took has come back. The first
    that fails is the last, since other ranks may hang then; nothing is returned after it. The
    last record is in ``out`` too.

    Args:
        out: the folder, as in :mod:`workers.probe.orders`.
        how: the ranks find each other, as of :func:`workers.probe.rendezvous.rendezvous`.

    Returns:
        The last record.
    """
    between, record = Between(), None
    for place in orders(out):
        sys.stdout.write(header(place.name))
        sys.stdout.flush()
        record, device = run_probe(place / SPEC, rendezvous(place, how))
        if record.is_well:
            assert device is not None
            _clean_up(between, device, record, out)
        record.write(place)
        if not record.is_well:
            break
    assert record is not None, f"no orders in {out}"
    record.write(out)
    return record


def _clean_up(between: Between, device: Device, record: Record, out: Path) -> None:
    """Give back what the probe took; what the device reports only now is the probe's outcome."""
    try:
        left_bytes = between.clean_up(device)
    except Exception as error:  # noqa: BLE001  (whatever it is becomes the record's outcome)
        record.fail(error, "finish", device)
        return
    if left_bytes > ALLOWED_BYTES:
        (out / SPENT).touch()
