"""Runs the launcher of a user's script, and ends with all that it has started.

    python -P -m workers.scripts.host --out DIR --watch-fd N --silence-s S

``DIR/host-NNNNN.json`` has the command, its environment and its folder; the number is RANK, for on
several nodes each has a host. The exit code is the launcher's.
Whoever supervises this writes a byte every second: when the pipe is closed or silent, or SIGTERM
comes, the launcher is asked to end, and what is left of it and its ranks is killed. What they print
goes to this process's own output, a file, of which beginning and end are kept.
"""

import argparse
import ctypes
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import psutil

from tuner.core.script import MEETING_HOST, MEETING_PORT, NODE_RANK, Command, Script, why_other
from tuner.errors import ProbeError
from tuner.integrations import PROBE
from workers.measuring.records import write_json
from workers.probe.orders import SUPERVISOR_GONE

# Variables by which a host knows its node's number, and how many there are.
PLACE = (("RANK", "0"), ("WORLD_SIZE", "1"))
# Environment variable with it, of all that a host starts.
NODE = "TUNER_PROBE_NODE"
# Where nodes meet: rank 0's address and a port of it that is free.
MEETING = "meeting.json"
# Code of a host whose node cannot run the script; its log says why.
NOT_HERE = 127
# Variables that each node has its own of, beside those of the command that asked.
OF_NODE = re.compile(r"SLURM\w*|CUDA_VISIBLE_DEVICES|GLOO_SOCKET_IFNAME")
# Between two looks at the launcher.
POLL_S = 0.05
# Seconds that the launcher gets to end by itself, and to remove its files.
TERM_S = 1.0
# Of the beginning, and at least of the end. A script may print as long as its probe takes, and the
# disk is everybody's.
KEPT_BYTES = 1 << 20
# Of one look at the pipe: what a pipe holds.
LOOK_BYTES = 1 << 16
# Seconds for the rest, once all processes of the script that are known have ended.
LAST_WORDS_S = 2.0
# Seconds that a killed process may take to be gone; longer means that a driver holds it.
GONE_S = 30.0
# Between two looks for such processes.
END_LOOK_S = 0.05
# Of prctl(2): processes that lose their parent become this one's children.
PR_SET_CHILD_SUBREAPER = 36


def order_path(folder: Path, node: int) -> Path:
    """The order of a node's host, which removes it: secrets of the user's may be in it."""
    return folder / f"host-{node:05d}.json"


def write_orders(
    folder: Path, script: Script, command: Command, launcher: tuple[str, ...], kept: dict[str, str]
) -> None:
    """Says what the hosts of a probe run.

    Args:
        folder: the probe's, which may be another one on other nodes.
        script: the question's.
        command: its command with the probe's settings.
        launcher: Python's arguments in the place of the command's launcher.
        kept: variables of whoever asked; the command's own are added.
    """
    order = {
        "made_in": str(folder),
        "launcher": launcher,
        "script": command.script,
        "sha256": script.sha256,
        "folder": script.folder,
        "environment": {**kept, **command.environment, PROBE: str(folder)},
    }
    for node in range(command.cluster.nodes):
        write_json(order_path(folder, node), order)


class _Watch:
    """Tells if the supervisor is there, and wants the launcher to go on."""

    def __init__(self, fd: int, silence_s: float) -> None:
        self._fd, self._silence_s = fd, silence_s
        self._heard = time.monotonic()
        self.is_stopped = False
        self._news = select.poll()
        self._news.register(fd, select.POLLIN)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._stop)

    def wait(self, seconds: float) -> bool:
        """Waits for so long; whether to go on."""
        if self._news.poll(seconds * 1000):
            self._heard = time.monotonic()
            if not os.read(self._fd, 4096):
                return False
        return not self.is_stopped and time.monotonic() - self._heard < self._silence_s

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.is_stopped = True


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m workers.scripts.host", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the probe's folder")
    parser.add_argument("--watch-fd", type=int, required=True, help="pipe to the supervisor")
    parser.add_argument("--silence-s", type=float, required=True, help="until it counts as gone")
    options = parser.parse_args()
    node, nodes = (int(os.environ.get(name, one)) for name, one in PLACE)
    with ended_without_host(options.out, node) as reaper:
        return _run(options.out, node, nodes, reaper, _Watch(options.watch_fd, options.silence_s))


@contextmanager
def ended_without_host(folder: Path, node: int) -> Iterator[int]:
    """A process that ends all of a node's when this one is killed: its number.

    Ray kills an actor's child, which a host is, before this could end anything.
    """
    read, feed = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(feed)
            os.setsid()  # whoever ends our group does not mean this one
            if not os.read(read, 1):
                end_all(folder, node)
        finally:
            os._exit(0)
    os.close(read)
    try:
        yield pid
    finally:
        os.write(feed, b".")
        os.close(feed)
        os.waitpid(pid, 0)


def _run(folder: Path, node: int, nodes: int, reaper: int, watch: _Watch) -> int:
    path = order_path(folder, node)
    order = json.loads(path.read_text(encoding="utf-8"))
    path.unlink()
    if why := why_other(order["script"][0], order["sha256"]):
        return _not_here(why)
    filled, reserved = {NODE_RANK: str(node)}, None
    if nodes > 1:
        if node == 0:
            reserved = reserve_meeting(folder)
        while not (folder / MEETING).exists():
            if not watch.wait(POLL_S):
                return SUPERVISOR_GONE
        meeting = json.loads((folder / MEETING).read_text(encoding="utf-8"))
        filled |= {MEETING_HOST: meeting["host"], MEETING_PORT: str(meeting["port"])}

    def of_here(text: str) -> str:
        return text.replace(order["made_in"], str(folder))

    argv = [filled.get(part, part) for part in order["launcher"]] + order["script"]
    own = {name: value for name, value in os.environ.items() if OF_NODE.fullmatch(name)}
    own[NODE] = str(node)
    told = {name: of_here(value) for name, value in order["environment"].items()}
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    copier = Copier(BoundedLog(sys.stdout.fileno()))
    try:
        try:
            launcher = subprocess.Popen(
                [sys.executable, *map(of_here, argv)],
                cwd=order["folder"],
                env=own | told,
                stdin=subprocess.DEVNULL,
                stdout=copier.pipe,
                stderr=copier.pipe,
            )
        except OSError as error:
            return _not_here(f"the script cannot be started: {error}")
        while (code := launcher.poll()) is None:
            if watch.wait(POLL_S):
                continue
            launcher.terminate()
            try:
                launcher.wait(TERM_S)
            except subprocess.TimeoutExpired:
                launcher.kill()
                launcher.wait()
            return 128 + signal.SIGTERM if watch.is_stopped else SUPERVISOR_GONE
        return code if code >= 0 else 128 - code
    finally:
        end_all(folder, node, spared=reaper)
        copier.close()
        if reserved is not None:
            reserved.close()


def _not_here(why: str) -> int:
    print(f"on {socket.gethostname()} {why}", flush=True)  # noqa: T201  (into its log)
    return NOT_HERE


def reserve_meeting(folder: Path) -> socket.socket:
    """Tells the hosts of other nodes where the ranks meet: on this one, at a port that is free.

    The kernel gives the port to nobody else while this socket is bound to it; a launcher that
    names it and, as TCP stores do, takes SO_REUSEADDR can listen there all the same.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("", 0))
    host = os.environ.get("MASTER_ADDR", "127.0.0.1")
    write_json(folder / MEETING, {"host": host, "port": held.getsockname()[1]})
    return held


class BoundedLog:
    """A file of the beginning, a line that says how much is left out, and the end.

    The end is in the file at any moment, also when its writer is killed; at most it is twice as
    long as it must be, so that not every line moves it.
    """

    def __init__(self, fd: int, kept_bytes: int = KEPT_BYTES) -> None:
        self._fd, self._kept = fd, kept_bytes
        self._begun = self._left_out = 0
        self._end = bytearray()

    def write(self, text: bytes) -> None:
        """Appends bytes. Raises OSError: the file cannot be written."""
        first = text[: self._kept - self._begun]
        more = text[len(first) :]
        self._begun += len(first)
        self._end += more
        _write(self._fd, first)
        if len(self._end) <= 2 * self._kept:
            _write(self._fd, more)
            return
        too_much = len(self._end) - self._kept
        self._left_out += too_much
        del self._end[:too_much]
        os.lseek(self._fd, self._kept, os.SEEK_SET)
        os.ftruncate(self._fd, self._kept)
        _write(self._fd, f"\n[{self._left_out:,} bytes are left out]\n".encode() + self._end)


class Copier:
    """Copies what is written to a pipe into a :class:`BoundedLog`, in a thread of its own."""

    def __init__(self, log: BoundedLog) -> None:
        self._log = log
        self._read, self.pipe = os.pipe()
        self._thread = threading.Thread(target=self._copy, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Waits for the rest, though not for a process that has kept the pipe and goes on."""
        os.close(self.pipe)
        self._thread.join(LAST_WORDS_S)

    def _copy(self) -> None:
        writes = True
        while text := os.read(self._read, LOOK_BYTES):
            try:
                if writes:
                    self._log.write(text)
            except OSError:  # a full disk: the script is read on, lest it wait for ever
                writes = False


def _write(fd: int, text: bytes) -> None:
    left = memoryview(text)
    while left:
        left = left[os.write(fd, left) :]


def end_all(folder: Path, node: int | None = None, spared: int = 0) -> None:
    """Kills whatever was started for the probe in a folder; returns when nothing of it is left.

    torchrun gives each rank a session of its own, so that they are found by what they inherit: the
    probe's folder in their environment. A ``node``'s host ends those of its node alone, which may
    share a machine with others, and finds its descendants without it, too; but for the process
    whose number is ``spared``. Raises ProbeError: one cannot be killed.
    """
    until = time.monotonic() + GONE_S
    marks = {PROBE: str(folder)} | ({} if node is None else {NODE: str(node)})
    while True:
        left = [] if node is None else psutil.Process().children(recursive=True)
        left = [process for process in left if process.pid != spared]
        for process in left:
            with suppress(ChildProcessError):  # a grandchild: its own parent's, which ends too
                os.waitpid(process.pid, os.WNOHANG)
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):  # gone by now, or somebody else's
                if process.pid != os.getpid() and marks.items() <= process.environ().items():
                    left.append(process)
        if not left:
            return
        if time.monotonic() > until:
            raise ProbeError(f"process {left[0].pid} of a script's probe cannot be killed")
        for process in left:
            with suppress(psutil.Error):
                process.kill()
        time.sleep(END_LOOK_S)


if __name__ == "__main__":
    sys.exit(main())
