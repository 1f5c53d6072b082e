"""The log of a script: beginning and end, whatever it prints."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.scripts.host import BoundedLog, Copier

KEPT = 100
MOST = 3 * KEPT + len("\n[1,000,000 bytes are left out]\n")


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "log", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    yield fd
    os.close(fd)


def content(fd: int) -> bytes:
    return os.pread(fd, 1 << 20, 0)


def test_what_is_long_has_its_middle_left_out(file: int) -> None:
    log = BoundedLog(file, KEPT)
    for number in range(1000):
        log.write(f"{number:09}\n".encode())
        assert len(content(file)) <= MOST
    beginning, told, end = content(file).split(b"[")[0], *content(file).split(b"[")[1].split(b"]")
    assert beginning == b"".join(b"%09d\n" % n for n in range(10)) + b"\n"
    left_out = int(told.split()[0].replace(b",", b""))
    assert left_out == 10_000 - KEPT - len(end) + 1
    assert end.endswith(b"000000999\n")
    assert KEPT <= len(end) - 1 <= 2 * KEPT


@given(sizes=st.lists(st.integers(1, 450), max_size=30))
def test_whatever_the_sizes_of_what_is_printed(
    sizes: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
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


def test_a_full_disk_does_not_stop_the_script(file: int) -> None:
    """A pipe that nobody reads stops its writer when it is full."""
    with Path("/dev/full").open("wb", buffering=0) as full:
        copier = Copier(BoundedLog(full.fileno(), KEPT))
        for _ in range(100):
            assert os.write(copier.pipe, b"x" * (1 << 16)) == 1 << 16
        copier.close()
