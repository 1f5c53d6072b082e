"""Run many specs in the ranks of one process group: ``python ranks.py FOLDER``.

Starting ranks costs seconds and a tiny model's steps cost milliseconds, so the ranks of one
world size go through all specs of ``FOLDER/specs.json`` and rank 0 writes ``records.json``.
Specs that are emulated are run by rank 0 alone.
"""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist

from tests.process.moving import moved, values_of
from workers.probe.device import open_device
from workers.probe.group import join, join_fake_group
from workers.probe.record import Record
from workers.probe.run import Rank
from workers.probe.spec import parse_spec
from workers.probe.stack import build_stack
from workers.probe.tensor_parallel import modules
from workers.probe.tracker import Phase


def run(values, rank):
    """One spec on this rank, with the program's own parts; only the process group is shared.

    ``faulty`` in it leaves out the sum of replicated parameters' gradients over ranks; ``moved``
    notes of how many parameters the values have changed, by whether they are trained.
    """
    if values.pop("moved", False):
        return run_and_compare(values, rank)
    if values.pop("faulty", False):
        unsummed = lambda parameter, alike=False: modules.split_weight(parameter)  # noqa: E731
        with mock.patch.object(modules, "replicated_weight", unsummed):
            return run(values, rank)
    spec, phase, record = parse_spec(values), Phase(), Record(rank=rank)
    device = open_device(spec.device, phase, local_rank=rank, limit_bytes=None, alone=spec.is_alone)
    Rank(spec=spec, rank=rank, device=device, phase=phase, record=record).run()
    return asdict(record)


def run_and_compare(values, rank):
    """One spec, with parameters compared bit for bit with those that the stack was built with."""
    models, before = [], {}

    def build(*args):
        stack = build_stack(*args)
        models.append(stack.model)
        before.update(values_of(stack.model))
        return stack

    with mock.patch("workers.probe.run.build_stack", build):
        record = run(values, rank)
    return {**record, "moved": moved(models[0], before)}


def main():
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    torch.set_num_threads(1)
    world_size = int(os.environ["WORLD_SIZE"])
    specs = json.loads((folder / "specs.json").read_text())
    if specs[0].get("fidelity") == "emulated":
        join_fake_group(world_size)
    else:
        join(world_size, rank, "gloo", f"file://{folder}/rendezvous")
    records = [run(spec, rank) for spec in specs]
    if rank == 0:
        (folder / "records.json").write_text(json.dumps(records))
    dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    main()
