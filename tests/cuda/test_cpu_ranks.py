"""Ranks on the CPU of a machine that has GPUs leave these alone."""

import sys
import time

from workers.launchers.base import Job
from workers.launchers.local import LocalLauncher

LOOK = """
import torch
from accelerate.utils import is_bf16_available

is_bf16_available()  # asked by accelerate in each rank in mixed precision
print(torch.cuda.device_count(), torch.cuda.is_initialized())
"""


def test_ranks_on_the_cpu_see_no_gpu(gpus, tmp_path):
    gpus(2)
    said = {}
    for device in ("cpu", "cuda"):
        place = tmp_path / device
        place.mkdir()
        argv = (sys.executable, "-c", LOOK)
        job = Job(argv=argv, directory=place, ranks=1, device=device, deadline_s=60.0)
        run = LocalLauncher().start(job)
        while run.poll() is None:
            time.sleep(0.05)
        said[device] = run.logs()[0].split()[-2:]
    assert said == {"cpu": ["0", "False"], "cuda": ["2", "True"]}
