"""Trains with an exported module, and prints as JSON what was seen.

    torchrun trained.py MODEL tuned.py...

For each module the main process prints the mean loss of each optimizer step, and the collectives.
"""

import importlib.util
import json
import os
import socket
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler

SEQUENCES, TOKENS = 16, 8


def module_of(path, name):
    """A file as a module."""
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def trained(tuned, model):
    """Losses and collectives of two optimizer steps."""
    launched = module_of(str(Path(__file__).parent / "launched.py"), "launched")
    mesh = tuned.start()
    torch.manual_seed(0)
    tokens = torch.randint(0, 64, (SEQUENCES, TOKENS))
    dataset = [{"input_ids": row, "labels": row} for row in tokens]
    prepared = tuned.prepare(tuned.load(model), mesh)
    optimizer = tuned.make_optimizer(prepared, 1e-3)
    share, replicas = dist.get_rank() // tuned.TP_SIZE, tuned.WORLD_SIZE // tuned.TP_SIZE
    in_order = DistributedSampler(dataset, replicas, share, shuffle=False)
    steps = tuned.optimizer_steps(tuned.loader(dataset, sampler=in_order))
    with launched.Collectives() as collectives:
        losses = [tuned.train_step(prepared, optimizer, batches) for batches in steps]
    counts = dict(collectives.counts)
    means = []
    for loss in losses:
        dist.all_reduce(loss)
        means.append(loss.item() / tuned.WORLD_SIZE)
    return {"losses": means, "collectives": counts}


def main():
    model, *paths = sys.argv[1:]
    for path in paths:
        found = trained(module_of(path, Path(path).stem), model)
        if dist.get_rank() == 0:
            print(json.dumps(found), flush=True)
        meet_elsewhere()
        dist.destroy_process_group()
    os._exit(0)  # threads of libraries that still run can abort an orderly end


def meet_elsewhere():
    """The next group meets at a store of its own: the last one's keys are still in torchrun's."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = torch.tensor(free.getsockname()[1])
    dist.broadcast(port, 0)
    os.environ["MASTER_PORT"] = str(int(port))
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"


if __name__ == "__main__":
    main()
