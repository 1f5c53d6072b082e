"""What keeps a rehearsal from being run, in one line; and errors that come of the network."""

import errno
import json
import socket
import subprocess
import sys

import pytest
from huggingface_hub import hf_hub_download
from transformers import AutoConfig

from tuner.errors import ProbeError
from tuner.machine import package_folder
from workers.rehearsal.__main__ import rehearse
from workers.rehearsal.inside import wants_network
from workers.stop import StopRequest

TUNER = [sys.executable, "-P", "-c", "import sys; from tuner.cli import main; sys.exit(main())"]
torch = package_folder("torch")
IS_FOR_CUDA = torch is not None and (torch / "lib" / "libtorch_cuda.so").exists()


@pytest.fixture
def machine(tmp_path):
    """The root of a machine that has a GPU."""
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidia0").touch()
    return tmp_path


def test_a_machine_with_a_gpu_is_left_alone(machine, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(ProbeError, match=r"^this machine has a GPU: .* \(--even-here does it\)$"):
        rehearse({"even_here": False}, StopRequest(), machine)
    # asked for, or where the GPU is hidden, nothing is left to run
    assert rehearse_none(even_here=True, root=machine) == ""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert rehearse_none(even_here=False, root=machine) == ""


def rehearse_none(*, even_here, root):
    """Rehearses no rank; what else keeps it from being run, if it is not torch's build."""
    try:
        found = rehearse({"even_here": even_here, "ranks": []}, StopRequest(), root)
    except ProbeError as error:
        return "" if "has no CUDA build" in str(error) else str(error)
    return "" if found == {"ranks": []} else str(found)


@pytest.mark.parametrize(
    ("before", "said"),
    [
        pytest.param(
            [], "this Python has no CUDA build of torch, but one for CPUs or another vendor's GPUs",
            marks=pytest.mark.skipif(IS_FOR_CUDA, reason="torch is built for CUDA"),
        ),
        (
            ["setarch", "i686"],
            "CUDA builds of torch are for Linux on x86_64 or aarch64, not Linux on i686",
        ),
    ],
    ids=["no-cuda-build", "another-architecture"],
)  # fmt: skip
def test_where_no_stand_in_can_be_built_a_line_says_why(tmp_path, before, said):
    asked = ["rehearse", "--even-here", "--json", "--", "python", "train.py"]
    done = subprocess.run(
        [*before, *TUNER, *asked], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    assert (
        json.loads(done.stdout)["error"]["message"] == f"a rehearsal is not possible here: {said}"
    )


def test_what_a_hub_was_needed_for_is_known_by_its_libraries_errors():
    with pytest.raises(FileNotFoundError) as missing:
        hf_hub_download("nobody/nothing", "config.json", local_files_only=True)
    assert wants_network(missing.value)
    with pytest.raises(OSError, match="couldn't connect") as of_model:  # raised from that
        AutoConfig.from_pretrained("nobody/nothing", local_files_only=True)
    assert wants_network(of_model.value)


def test_other_errors_have_nothing_to_do_with_a_hub():
    refused = OSError(errno.ENETUNREACH, "a rehearsal has no network")
    told = ConnectionError("no answer")
    told.__context__ = refused
    assert wants_network(told)
    assert wants_network(socket.gaierror(socket.EAI_AGAIN, "no such name"))
    assert not wants_network(RuntimeError("Hub of the wheel is Offline: LocalEntryNotFoundError"))
    assert not wants_network(FileNotFoundError(errno.ENOENT, "no network.json"))
    assert not wants_network(type("OfflineModeIsEnabled", (Exception,), {})())
