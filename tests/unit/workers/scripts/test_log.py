"""The log of a script: beginning and end, whatever it prints."""

import os
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from workers.scripts.host import BoundedLog, Copier

KEPT = 100
MOST = 3 * KEPT + len("\n[1,000,000 bytes are left out]\n")


@given(sizes=st.lists(st.integers(1, 450), max_size=30))
def test_whatever_the_sizes_of_what_is_printed(sizes, tmp_path_factory):
    whole = b"".join(bytes([65 + n % 26]) * size for n, size in enumerate(sizes))
    path = tmp_path_factory.mktemp("log") / "log"
    with path.open("wb", buffering=0) as opened:
        log = BoundedLog(opened.fileno(), KEPT)
        at = 0
        for size in sizes:
            log.write(whole[at : at + size])
            at += size
    found = path.read_bytes()
    assert len(found) <= MOST
    assert found[:KEPT] == whole[:KEPT]
    assert found[-KEPT:] == whole[-KEPT:] or len(whole) < KEPT
    assert b"left out" in found or found == whole


def test_a_full_disk_does_not_stop_the_script():
    """A pipe that nobody reads stops its writer when it is full."""
    with Path("/dev/full").open("wb", buffering=0) as full:
        copier = Copier(BoundedLog(full.fileno(), KEPT))
        for _ in range(100):
            assert os.write(copier.pipe, b"x" * (1 << 16)) == 1 << 16
        copier.close()
