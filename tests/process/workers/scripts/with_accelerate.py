"""A training script with accelerate."""

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import GradientAccumulationPlugin

from tuner.integrations import report_step

parser = argparse.ArgumentParser()
parser.add_argument("--micro", type=int)
parser.add_argument("--accumulation", type=int)
parser.add_argument("--sync", choices=["true", "false"])
options = parser.parse_args()
accelerator = Accelerator(
    cpu=True,
    gradient_accumulation_plugin=GradientAccumulationPlugin(
        num_steps=options.accumulation, sync_each_batch=options.sync == "true"
    ),
)
assert accelerator.num_processes == 2
torch.manual_seed(0)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches = torch.utils.data.DataLoader(torch.randn(4096, 64), batch_size=options.micro)
model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
for batch in batches:
    with accelerator.accumulate(model):
        loss = model(batch).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    if accelerator.sync_gradients:
        report_step(loss=loss)
