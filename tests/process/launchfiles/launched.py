"""Runs the code that exported files carry, and prints as JSON what is in force.

    accelerate launch --config_file FILE launched.py MODEL [--fsdp-on-cpu] FILE...

The files differ in their code, and in who checkpoints: the launcher has read one of them. For each
file the main process prints one line. With ``--fsdp-on-cpu`` accelerate is made to shard on a CPU,
which it would pass over.
"""

import contextlib
import json
import os
import sys
from collections import Counter
from pathlib import Path
from unittest import mock

import torch
import yaml
from accelerate import Accelerator, DistributedType, FullyShardedDataParallelPlugin
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils import ParallelismConfig
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from tests.process.moving import moved, values_of
from workers.probe.tracker import Phase, StorageTracker

COLLECTIVES = ("allreduce_", "_allgather_base_", "_reduce_scatter_base_")
SEQUENCES, TOKENS = 16, 8


class Collectives(TorchDispatchMode):
    """Counts collectives, with the number format of what they send."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._overloadpacket._qualified_op_name.split("::")[-1]
        if name in COLLECTIVES:
            sent = args[1] if name.endswith("base_") else args[0][0]
            if sent.is_floating_point():
                self.counts[f"{name.strip('_')} {sent.dtype}"] += 1
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def seen_at_backward(tracker):
    """Bytes of live tensors as each backward begins."""
    found = []
    original = Accelerator.backward

    def backward(self, loss, **kwargs):
        found.append(tracker.current_bytes)
        original(self, loss, **kwargs)

    with mock.patch.object(Accelerator, "backward", backward):
        yield found


@contextlib.contextmanager
def seen_when_prepared():
    """Parameters as the model is prepared, each rank's part."""
    found = {}
    original = Accelerator.prepare

    def prepare(self, *args):
        prepared = original(self, *args)
        with _disable_current_modes():  # copies are not of the step
            found.update(values_of(prepared[0]))
        return prepared

    with mock.patch.object(Accelerator, "prepare", prepare):
        yield found


def code_of(file):
    """The code between the fences in the file's comments."""
    text = Path(file).read_text(encoding="utf-8")
    fsdp = yaml.safe_load(text).get("fsdp_config", {})
    name = "fsdp_activation_checkpointing"  # as the launcher hands it on
    os.environ[name.upper()] = str(fsdp.get(name, False)).lower()
    lines = text.splitlines()
    start, end = lines.index("# ```python"), lines.index("# ```")
    return "\n".join(line[2:] for line in lines[start + 1 : end])


def run(file, model):
    """Execute the file's code on synthetic tokens."""
    AcceleratorState._reset_state()
    GradientState._reset_state()
    torch.manual_seed(0)
    tokens = torch.randint(0, 64, (SEQUENCES, TOKENS))
    dataset = [{"input_ids": row, "labels": row} for row in tokens]
    names = {"MODEL": model, "DATASET": dataset, "LEARNING_RATE": 1e-3}
    tracker = StorageTracker(Phase())
    with (
        seen_when_prepared() as before,
        seen_at_backward(tracker) as held,
        tracker,
        Collectives() as collectives,
    ):
        exec(compile(code_of(file), file, "exec"), names)
    return {
        **in_force(names),
        "collectives": dict(collectives.counts),
        "held_bytes": held[1],
        "moved": moved(names["model"], before),
    }


def in_force(names):
    accelerator, model = names["accelerator"], names["model"]
    return {
        "processes": accelerator.num_processes,
        "distributed_type": str(accelerator.distributed_type.value),
        "device": accelerator.device.type,
        "mixed_precision": accelerator.mixed_precision,
        "gradient_accumulation_steps": accelerator.gradient_accumulation_steps,
        "sync_each_batch": accelerator.gradient_state.plugin_kwargs.get("sync_each_batch", False),
        "weights": str(next(model.parameters()).dtype),
        "checkpointed": sum(_is_checkpointed(m) for m in model.modules()),
        "optimizer": type(names["optimizer"].optimizer).__name__,
        "optimizer_steps": int(next(iter(names["optimizer"].state.values()))["step"]),
        "loss": float(names["loss"].detach()),
    }


def _is_checkpointed(module):
    name = type(module).__name__
    if name.endswith("CheckpointWrapper"):
        return True
    return name.endswith("DecoderLayer") and module.gradient_checkpointing


@contextlib.contextmanager
def fsdp_on_cpu():
    """Have every Accelerator enter FSDP as it does on GPUs (``AcceleratorState.__init__``)."""
    original = Accelerator.__init__

    def enter(self, *args, **kwargs):
        plugin = kwargs.get("fsdp_plugin") or FullyShardedDataParallelPlugin()
        original(self, *args, **{**kwargs, "cpu": True})
        if self.mixed_precision != "no":
            plugin.set_mixed_precision(self.mixed_precision)
        PartialState._shared_state["distributed_type"] = DistributedType.FSDP
        self.state.distributed_type = DistributedType.FSDP
        self.state.fsdp_plugin = plugin
        config = ParallelismConfig(dp_shard_size=self.num_processes)
        self.state.parallelism_config = config
        self.state.device_mesh = config.build_device_mesh("cpu")

    Accelerator.__init__ = enter
    try:
        yield
    finally:
        Accelerator.__init__ = original


def main():
    model, *rest = sys.argv[1:]
    files = [file for file in rest if file != "--fsdp-on-cpu"]
    with fsdp_on_cpu() if "--fsdp-on-cpu" in rest else contextlib.nullcontext():
        for file in files:
            result = run(file, model)
            if PartialState().is_main_process:
                print(json.dumps(result), flush=True)
    PartialState().destroy_process_group()
    os._exit(0)  # threads of libraries that still run can abort an orderly end


if __name__ == "__main__":
    main()
