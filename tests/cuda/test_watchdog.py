"""What a finished reduction holds is let go of once the watchdog has seen its end."""

import subprocess
import sys

REDUCE = """
import torch
import torch.distributed as dist
from workers.probe.group import wait_for_watchdog
dist.init_process_group("nccl", rank=0, world_size=1, store=dist.HashStore())
wait_for_watchdog()  # nothing was sent yet
one = torch.ones(1, device=0)
for _ in range(3):
    work = dist.all_reduce(torch.ones(2**20, device=0), async_op=True)
    work.get_future().wait()  # as DDP waits
    del work
    wait_for_watchdog()
    dist.all_reduce(one)
    print(torch.cuda.memory_allocated())
dist.destroy_process_group()
"""


def test_the_next_collective_finds_nothing_held(gpus):
    gpus(1)
    command = [sys.executable, "-c", REDUCE]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["512", "512", "512"]
