"""What a rehearsed script may not touch unless it is asked for, and what is left when it ends."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.usefixtures("standin")
TUNER = [sys.executable, "-P", "-c", "import sys; from tuner.cli import main; sys.exit(main())"]
# Writes beside the script in three ways, and connects in two.
REACHES_OUT = """
import ctypes, os, socket, struct, sys
import torch
weight = torch.nn.Parameter(torch.ones(8, device="cuda"))
optimizer = torch.optim.SGD([weight])
weight.sum().backward()
torch.save({"weight": weight}, "kept/model.pt")
with open("kept/log.txt", "w") as file:
    file.write("new")
os.replace("kept/new.txt", "kept/old.txt")
host, port = sys.argv[1], int(sys.argv[2])
try:
    socket.create_connection((host, port), timeout=60).close()
except OSError as error:
    print(error)
plain, libc = socket.socket(), ctypes.CDLL(None)  # as a library of another language does
address = struct.pack("=H2x4s8x", socket.AF_INET, socket.inet_aton(host))
address = address[:2] + struct.pack("!H", port) + address[4:]
libc.connect(plain.fileno(), address, len(address))
for _ in range(9):
    optimizer.step()
"""
STAYS = """
import subprocess, sys, time
from pathlib import Path
import torch
weight = torch.nn.Parameter(torch.ones(8, device="cuda"))
optimizer = torch.optim.SGD([weight])
weight.sum().backward()
optimizer.step()
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(900)"],
                         start_new_session=True)
Path("started.txt").write_text(str(child.pid))
time.sleep(900)
"""


@pytest.fixture
def listener():
    """Listens on an address of this machine that is not its loopback."""
    own = [
        one.address
        for addresses in psutil.net_if_addrs().values()
        for one in addresses
        if one.family == socket.AF_INET and not one.address.startswith("127.")
    ]
    if not own:
        pytest.skip("this machine has no address but its loopback")
    with socket.create_server((own[0], 0)) as found:
        found.setblocking(False)
        yield found


@pytest.mark.parametrize("allowed", ["", "--allow-network", "--allow-writes"])
def test_only_what_is_allowed_is_done(rehearse, tmp_path, listener, allowed):
    kept = tmp_path / "kept"
    kept.mkdir()
    for name in ("model.pt", "log.txt", "old.txt", "new.txt"):
        (kept / name).write_text(name)
    host, port = listener.getsockname()
    options = [allowed] if allowed else []
    code, found = rehearse(REACHES_OUT, options, ["python"], host, str(port))
    (rank,) = found["ranks"]
    assert (code, rank["outcome"]) == (0, "ok"), rank
    connected = 0
    while True:
        try:
            listener.accept()[0].close()
        except BlockingIOError:
            break
        connected += 1
    if allowed == "--allow-network":
        assert (connected, rank["refused"]) == (2, [])
    else:
        assert (connected, rank["refused"]) == (0, [f"a connection to {host}:{port}"])
    after = {path.name: path.read_bytes() for path in kept.iterdir()}
    if allowed == "--allow-writes":
        assert sorted(after) == ["log.txt", "model.pt", "old.txt"]
        assert (after["log.txt"], after["old.txt"]) == (b"new", b"new.txt")
        assert after["model.pt"] != b"model.pt"
        assert rank["not_run"] == []
    else:
        assert after == {name: name.encode() for name in after}
        assert len(after) == 4
        assert "torch.save to kept/model.pt" in rank["not_run"]
        assert any("kept/log.txt" in one for one in rank["not_run"])


def test_a_refused_connection_that_ends_the_script_says_what_helps(rehearse):
    text = "import socket\nsocket.create_connection(('192.0.2.1', 9))\n"
    code, found = rehearse(text, [], ["python"])
    (rank,) = found["ranks"]
    assert (code, rank["outcome"]) == (1, "failed"), rank
    assert rank["detail"].endswith("or --allow-network"), rank["detail"]
    code, found = rehearse("raise RuntimeError('the Hub of the wheel')\n", [], ["python"])
    assert found["ranks"][0]["detail"] == "RuntimeError: the Hub of the wheel"


@pytest.mark.parametrize(
    ("without", "said"),
    [
        ("PATH", "a rehearsal is not possible here: there is no gcc and no nm: a C compiler is "),
        ("GCC_EXEC_PREFIX", "the stand-in for CUDA's libraries cannot be built: gcc ends with 1: "),
    ],
    ids=["no-compiler", "one-that-fails"],
)
def test_without_a_compiler_that_works_a_line_says_so(tmp_path, without, said):
    asked = [*TUNER, "rehearse", "--json", "--even-here", "--", "python", "train.py"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), without: f"{tmp_path}/"}
    done = subprocess.run(
        asked, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    told = json.loads(done.stdout)["error"]["message"]
    assert done.returncode == 1
    assert told.startswith(said)
    assert "\n" not in told
    assert list(tmp_path.glob("tuner/standin/*")) == []


@pytest.mark.parametrize("ended", ["rank", "command"])
def test_nothing_is_left_of_what_is_ended_in_mid_run(tmp_path, ended):
    temporary, started = tmp_path / "tmp", tmp_path / "started.txt"
    temporary.mkdir()
    (tmp_path / "train.py").write_text(STAYS)
    asked = [*TUNER, "rehearse", "--json", "--allow-writes", "--", "python", "train.py"]
    command = subprocess.Popen(
        asked,
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        while not (started.exists() and started.read_text()):
            assert command.poll() is None, command.communicate()
            time.sleep(0.1)
        below = psutil.Process(command.pid).children(recursive=True)
        (rank,) = (one for one in below if "workers.rehearsal.inside" in one.cmdline())
        assert int(started.read_text()) in {one.pid for one in below}
        folder = Path(rank.cmdline()[-1]).parent.parent
        assert folder.is_dir()
        if ended == "rank":
            rank.kill()
        else:
            command.send_signal(signal.SIGINT)
        out, errors = command.communicate(timeout=300)
    finally:
        command.kill()
        command.wait()
    error = json.loads(out)["error"]["message"]
    if ended == "rank":
        assert command.returncode == 1
        assert "the script was killed, as the kernel does for want of memory" in error
    else:
        assert command.returncode == 128 + signal.SIGINT
        assert error == "stopped by SIGINT; nothing is left of the rehearsal"
    assert "Traceback" not in errors
    assert not [one for one in below if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
    assert not folder.exists()
    assert list(temporary.iterdir()) == []
