"""A training script with DistributedDataParallel, and ways to get accumulation wrong."""

import argparse
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tuner.integrations import report_step

parser = argparse.ArgumentParser()
parser.add_argument("--micro", type=int)
parser.add_argument("--accumulation", type=int)
parser.add_argument("--no-accumulation", action="store_true")
parser.add_argument("--step-always", action="store_true")
parser.add_argument("--fail-on", type=int)
parser.add_argument("--run-out-on", type=int)
options = parser.parse_args()
count = 1 if options.no_accumulation else options.accumulation

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(1000):
    if step == 2 and dist.get_rank() == options.fail_on:
        raise MemoryError("as if")
    if step == 2 and dist.get_rank() == options.run_out_on:
        raise torch.OutOfMemoryError("as if")
    for micro in range(count):
        with nullcontext() if micro == count - 1 else model.no_sync():
            loss = model(torch.randn(options.micro * 8, 64)).square().mean() / count
            loss.backward()
        if options.step_always and micro < count - 1:
            optimizer.step()
    optimizer.step()
    optimizer.zero_grad()
    report_step(loss=loss)
