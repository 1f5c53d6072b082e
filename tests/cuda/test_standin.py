"""The stand-in is what its options say, as torch and nvidia-smi tell it."""

import json
import subprocess
import sys
from pathlib import Path

LOOK = """
import json, sys, torch
import torch.distributed as dist
def words(call):
    try:
        return repr(call())
    except Exception as error:
        return f"{type(error).__name__}: {error}"
def bytes_on_device(size):
    return torch.empty(size, dtype=torch.int8, device=0).numel()
seen = {"count": torch.cuda.device_count(), "start": words(torch.cuda.init)}
if seen["start"] == "None":
    kind = torch.cuda.get_device_properties(0)
    free, total = torch.cuda.mem_get_info()
    seen |= {
        "name": kind.name, "capability": [kind.major, kind.minor], "bus": kind.pci_bus_id,
        "free_mib": free >> 20, "total_mib": total >> 20,
        "within": words(lambda: bytes_on_device(free - (100 << 20))),
        "beyond": words(lambda: bytes_on_device(free + (100 << 20))),
    }
    dist.init_process_group("nccl", rank=0, world_size=1, store=dist.HashStore())
    seen["reduced"] = words(lambda: dist.all_reduce(torch.ones(1, device=0)))
print(json.dumps(seen))
"""


def look():
    """What a new process sees."""
    done = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def smi(*arguments):
    """The answer of nvidia-smi."""
    return subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, check=False)


def test_sizes_and_another_tenant(gpus, monkeypatch):
    gpus(2, name="Tesla T4", capability=7.5, mib=15_000, tenant_mib="0,10000", nvml="processes")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-00000001,0,7,1")
    seen = look()
    assert seen["count"] == 2  # up to the first that is not there
    assert (seen["name"], seen["capability"], seen["bus"]) == ("Tesla T4", [7, 5], 2)
    assert (seen["free_mib"], seen["total_mib"]) == (15_000 - 512 - 10_000, 15_000)
    assert seen["within"].isdecimal()
    assert seen["beyond"].startswith("OutOfMemoryError")
    assert "Process 4242 has 9.77 GiB memory in use" in seen["beyond"]
    assert seen["reduced"] == "None"


def test_faults_of_a_driver(gpus, monkeypatch):
    gpus(1, driver=12040)
    seen = look()
    assert seen["count"] == 0
    assert "driver on your system is too old (found version 12040)" in seen["start"]
    gpus(1, nvml="refuses", nccl_mib=200_000)
    seen = look()
    assert "NVML_SUCCESS == r INTERNAL ASSERT FAILED" in seen["beyond"]
    assert seen["reduced"].startswith("DistBackendError")
    assert "Failed to CUDA calloc async 6291456 bytes" in seen["reduced"]
    gpus(2, mig=1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-00000000-1111-2222-3333-444444444444")
    assert look()["count"] == 0


def test_what_nvidia_smi_answers(gpus):
    gpus(2, tenant_mib="0,1000", sm_mhz="1980,1200")
    fields = "--query-gpu=index,memory.used,clocks.sm,mig.mode.current"
    assert smi(fields, "--format=csv").stdout.splitlines() == [
        "index, memory.used [MiB], clocks.sm [MHz], mig.mode.current",
        "0, 0 MiB, 1980 MHz, Disabled",
        "1, 1000 MiB, 1200 MHz, Disabled",
    ]
    apps = ("--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits")
    assert smi(*apps).stdout == "4242, 1000\n"
    assert smi(*apps, "-i", "0").stdout == ""
    unknown = smi("--query-gpu=uuid,colour", "--format=csv")
    assert (unknown.returncode, unknown.stdout.strip()) == (
        2, 'Field "colour" is not a valid field to query.',
    )  # fmt: skip


def test_what_was_recorded_of_nvidia_smi(gpus, tmp_path):
    gpus(1, smi=tmp_path)
    (tmp_path / "gpus.csv").write_text("uuid, memory.total [MiB]\nGPU-1, 40960 MiB\nGPU-2, [N/A]\n")
    fields = ("--query-gpu=memory.total,name,uuid", "--format=csv,noheader,nounits")
    assert smi(*fields).stdout == "40960, [N/A], GPU-1\n[N/A], [N/A], GPU-2\n"
    words = "Failed to initialize NVML: Driver/library version mismatch\n"
    (tmp_path / "failure.txt").write_text(f"18\n{words}")
    failed = smi(*fields)
    assert (failed.returncode, failed.stdout) == (18, words)


def test_a_command_of_the_environment_is_found():
    bare = {"PATH": "/usr/bin:/bin"}
    for command, said in (("tuner", "tuner suggest"), ("no-such-command", "is not in PATH")):
        done = subprocess.run(
            [sys.executable, "-P", "-m", "workers.standin.run", command, "suggest", "--help"],
            capture_output=True,
            text=True,
            check=False,
            env={**bare, "HOME": str(Path.home())},
        )
        assert said in done.stdout + done.stderr
        assert "Traceback" not in done.stderr
