"""How the ranks of an order find each other: by a file of their node, or at rank 0's address."""

import fcntl
import os
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from torch._C._distributed_c10d import Store, TCPStore

from workers.probe.group import COLLECTIVE_TIMEOUT, Meeting
from workers.probe.orders import ADDRESS, POLL_S

SIOCGIFADDR = 0x8915
"""Linux's request for an interface's IPv4 address (linux/sockios.h)."""


def rendezvous(place: Path, how: str) -> Meeting:
    """Where the ranks of an order meet.

    Args:
        place: the order's folder.
        how: ``file`` where they are of one node, else ``address``.
    """
    if how == "file":
        return f"file://{place}/rendezvous"
    return lambda rank, world_size: _store(place, rank, world_size)


def _store(place: Path, rank: int, world_size: int) -> Store:
    """The store of all ranks, which is rank 0's; others wait until it says where it is.

    The supervisor keeps the deadline.
    """
    host, port = os.environ["MASTER_ADDR"], 0
    if rank != 0:
        host, port = _wait_for(place / ADDRESS)
    _take_interface(host)
    store = TCPStore(
        host,
        port,
        world_size,
        is_master=rank == 0,
        timeout=COLLECTIVE_TIMEOUT,
        wait_for_workers=False,
    )
    if rank == 0:
        _tell(place / ADDRESS, f"{host} {store.port}")
    return store


def _tell(path: Path, text: str) -> None:
    """Write a file at once or not at all."""
    partial = path.with_suffix(".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def _wait_for(path: Path) -> tuple[str, int]:
    while True:
        with suppress(FileNotFoundError):
            host, port = path.read_text(encoding="utf-8").split()
            return host, int(port)
        time.sleep(POLL_S)


def _take_interface(host: str) -> None:
    """Have gloo talk over the interface that reaches rank 0, unless it is named already.

    By itself it takes the one that this host's name resolves to, which on many systems is a
    loopback one.
    """
    if "GLOO_SOCKET_IFNAME" in os.environ:
        return
    found = interface_of(own_address_to(host))
    if found:
        os.environ["GLOO_SOCKET_IFNAME"] = found


def own_address_to(host: str) -> str:
    """This machine's IPv4 address as ``host`` sees it; empty where there is no way to it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 1))  # nothing is sent: the kernel only picks a route
        except OSError:
            return ""
        return str(probe.getsockname()[0])


def interface_of(address: str, look: Callable[[str], str] | None = None) -> str:
    """The interface that has an IPv4 address; empty if none has.

    Args:
        address: of this machine.
        look: tells the address of an interface; the kernel unless given.
    """
    look = look or address_of
    return next((name for _, name in socket.if_nameindex() if look(name) == address), "")


def address_of(interface: str) -> str:
    """The IPv4 address of an interface; empty if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        request = struct.pack("256s", interface.encode()[:15])
        try:
            answer = fcntl.ioctl(asked.fileno(), SIOCGIFADDR, request)
        except OSError:
            return ""
        return socket.inet_ntoa(answer[20:24])
