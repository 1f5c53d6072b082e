"""Backward passes and optimizer steps of a real model, counted."""

import json
import subprocess
import sys

STEPS = """
import json
import torch
from torch.utils.checkpoint import checkpoint
from tuner.integrations import Counts

counts = Counts()
counts.start()
layer = torch.nn.Linear(2, 2)
optimizers = [torch.optim.SGD(layer.parameters()), torch.optim.AdamW(layer.parameters())]
seen = []
for passes, stepping in ((1, optimizers[:1]), (3, optimizers), (2, [])):
    for _ in range(passes):
        hidden = layer(torch.ones(1, 2))
        checkpoint(layer, hidden, use_reentrant=True).sum().backward()
    for optimizer in stepping:
        optimizer.step()
    seen.append(counts.take_step())
print(json.dumps([seen, counts.optimizer_steps]))
"""


def test_what_is_counted(preloaded):
    argv = preloaded((sys.executable, "-P", "-c", STEPS))
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [[1, 3, 2], 2]
