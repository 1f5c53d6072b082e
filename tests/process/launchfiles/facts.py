"""Trains under exported files, and as the probe does, and prints the facts of a step as JSON.

    torchrun ... facts.py MODEL JOBS.json

A job is ``{"kind", "path"}``: ``accelerate`` executes the code of a file under the environment that
``accelerate launch`` makes of it, ``trainer`` reads arguments, ``torch`` imports a module, and
``probe`` builds the stack of a spec. Each makes two optimizer steps, of which the second is told;
the main process prints a line for each job. Ranks are on a CPU, where accelerate would pass over
FSDP: it is made to enter it as it does on GPUs. Only what old releases have is imported.
"""

import contextlib
import json
import os
import sys
from collections import Counter
from pathlib import Path

import torch
import torch.distributed as dist
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from workers.probe.tracker import Phase, StorageTracker

RATE = 1e-3


class Facts:
    """What is seen of each optimizer step, by hooks of torch's that all scripts pass."""

    def __init__(self):
        self.steps = []
        self.losses = []
        self._tracker = StorageTracker(Phase())
        self._called = {}
        self._held = []
        self._clips = 0
        self._computed = set()
        self._on_host = 0

    @contextlib.contextmanager
    def of(self):
        """Records while it lasts."""
        backward, clip = torch.Tensor.backward, torch.nn.utils.clip_grad_norm_
        save = torch.autograd.graph.save_on_cpu.__init__

        def seen_backward(loss, *args, **kwargs):
            self._held.append(self._tracker.current_bytes)
            self.losses.append(float(loss.detach()))
            backward(loss, *args, **kwargs)

        def seen_clip(*args, **kwargs):
            self._clips += 1
            return clip(*args, **kwargs)

        def seen_save(*args, **kwargs):
            self._on_host += 1
            # as on GPUs: for a device of its own kind a CPU's rank would try to pin
            save(*args, **{**kwargs, "device_type": "cuda"})

        torch.autograd.graph.save_on_cpu.__init__ = seen_save
        torch.Tensor.backward = seen_backward
        torch.nn.utils.clip_grad_norm_ = seen_clip
        hooks = [
            register_optimizer_step_pre_hook(self._before),
            register_optimizer_step_post_hook(self._after),
            torch.nn.modules.module.register_module_forward_pre_hook(self._call),
            torch.nn.modules.module.register_module_forward_hook(self._result),
        ]
        try:
            with self._tracker:
                yield
        finally:
            torch.autograd.graph.save_on_cpu.__init__ = save
            torch.Tensor.backward = backward
            torch.nn.utils.clip_grad_norm_ = clip
            for hook in hooks:
                hook.remove()

    def _call(self, module, _):
        self._called[id(module)] = module

    def _result(self, module, _, output):
        if isinstance(module, torch.nn.Linear):
            self._computed.add(str(output.dtype))

    def _before(self, optimizer, *_):
        of_step = [p for group in optimizer.param_groups for p in group["params"]]
        gradients = [p.grad for p in of_step if p.grad is not None]
        calls = [call for call in self._tracker.calls if call.dtype.is_floating_point]
        sent = Counter()
        for call in calls:
            if call.op != "broadcast":  # of buffers, which releases have more or fewer of
                sent[f"{call.op} {call.dtype}"] += call.bytes
        self.steps.append({
            "micro_batches": len(self._held),
            "held_bytes": self._held[0],
            "collectives": dict(sorted(Counter(f"{c.op} {c.dtype}" for c in calls).items())),
            "sent_bytes": dict(sorted(sent.items())),
            "parameters": _formats(of_step),
            "gradients": _formats(gradients),
            "clips": self._clips,
            "computes": sorted(self._computed),
            "saved_on_host": self._on_host,
            "optimizer": type(optimizer).__name__,
            "units": units(list(self._called.values())),
            "wrappers": sorted(
                type(m).__name__ for m in self._called.values() if "Parallel" in type(m).__name__
            ),
        })  # fmt: skip

    def _after(self, optimizer, *_):
        states = [t for state in optimizer.state.values() for t in state.values()]
        self.steps[-1]["state"] = _formats([t for t in states if torch.is_tensor(t) and t.dim()])
        self.steps[-1]["peak_bytes"] = self._tracker.peak_bytes
        self.steps[-1]["losses"] = self.losses[-len(self._held) :]
        self._tracker.reset_peak()
        self._held.clear()
        self._called.clear()
        self._computed.clear()
        self._clips = self._on_host = 0


def _formats(tensors):
    """Elements on this rank by number format."""
    found = Counter()
    for tensor in tensors:
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        found[str(local.dtype)] += local.numel()
    return dict(sorted(found.items()))


def units(modules):
    """FSDP2's groups of parameters, in the order of forward."""
    found = {}
    for module in modules:
        state = getattr(module, "_get_fsdp_state", lambda: None)()
        group = state._fsdp_param_group if state is not None else None
        if group is None or id(group) in found:
            continue
        policy = group.mp_policy
        own = group.fsdp_params[0]
        mesh = group.mesh_info
        found[id(group)] = {
            "first": type(module).__name__.removeprefix("FSDP"),
            "elements": sum(p._orig_size.numel() for p in group.fsdp_params),
            "reshards": group.post_forward_mesh_info is not None,
            "shards": mesh.shard_mesh_size,
            "replicas": getattr(mesh, "replicate_mesh_size", 1),
            "computes": str(policy.param_dtype or own.orig_dtype),
            "reduces": str(policy.reduce_dtype or policy.param_dtype or own.orig_dtype),
            "casts_output": str(policy.output_dtype),
            "offloads": own.offload_to_cpu,
        }
    return list(found.values())


def environment_of(path):
    """What ``accelerate launch`` hands on of a file."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import prepare_multi_gpu_env

    argv = ["--config_file", path, "--main_process_port", "0", "script.py"]
    args, *_ = _validate_launch_command(launch_command_parser().parse_args(argv))
    return prepare_multi_gpu_env(args)


OURS = ("ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_")


@contextlib.contextmanager
def as_launched(path):
    """This process's environment as of a file; clean of the job's before."""
    kept = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith(OURS)}
    if path is not None:
        made = environment_of(path)
        os.environ.update({name: made[name] for name in made if name.startswith(OURS)})
    try:
        yield
    finally:
        for name in [name for name in os.environ if name.startswith(OURS)]:
            del os.environ[name]
        os.environ.update(kept)


def enter_fsdp():
    """Have every Accelerator be on the CPU, and enter FSDP there as it does on GPUs
    (``AcceleratorState.__init__``)."""
    import accelerate
    from accelerate import Accelerator, DistributedType, FullyShardedDataParallelPlugin
    from accelerate.state import PartialState

    original = Accelerator.__init__
    if hasattr(accelerate, "ParallelismConfig"):  # it takes processes of GPUs alone
        accelerate.ParallelismConfig._validate_accelerator = lambda *_: None

    def enter(self, *args, **kwargs):
        plugin = kwargs.get("fsdp_plugin")
        if plugin is None and os.environ.get("ACCELERATE_USE_FSDP", "false") == "true":
            plugin = FullyShardedDataParallelPlugin()
        original(self, *args, **{**kwargs, "cpu": True})
        if plugin is None:
            return
        if self.mixed_precision != "no":
            plugin.set_mixed_precision(self.mixed_precision)
        if getattr(plugin.cpu_offload, "pin_memory", False):  # for a CUDA device only
            plugin.cpu_offload = type(plugin.cpu_offload)(pin_memory=False)
        PartialState._shared_state["distributed_type"] = DistributedType.FSDP
        self.state.distributed_type = DistributedType.FSDP
        self.state.fsdp_plugin = plugin
        if os.environ.get("ACCELERATE_USE_PARALLELISM_CONFIG", "false") == "true":
            config = accelerate.utils.ParallelismConfig()  # from 1.10 on
            self.state.parallelism_config = config
            self.state.device_mesh = config.build_device_mesh("cpu")

    Accelerator.__init__ = enter


def code_of(file):
    """The code between the fences in the file's comments."""
    lines = Path(file).read_text(encoding="utf-8").splitlines()
    start, end = lines.index("# ```python"), lines.index("# ```")
    return "\n".join(line[2:] for line in lines[start + 1 : end])


def dataset_of(count, length):
    torch.manual_seed(0)
    tokens = torch.randint(0, 64, (count, length))
    return [{"input_ids": row, "labels": row} for row in tokens]


def train(job, model):
    """Two optimizer steps of a job."""
    dataset = dataset_of(2 * job["global_batch_size"], job["sequence_length"])
    if job["kind"] == "accelerate":
        names = {"MODEL": model, "DATASET": dataset, "LEARNING_RATE": RATE}
        exec(compile(code_of(job["path"]), job["path"], "exec"), names)
    elif job["kind"] == "trainer":
        with_trainer(job, model, dataset)
    elif job["kind"] == "torch":
        with_module(job["path"], model, dataset)
    else:
        as_probe(job["spec"])


def with_trainer(job, model, dataset):
    from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments

    (arguments,) = HfArgumentParser(TrainingArguments).parse_json_file(job["path"])
    arguments.num_train_epochs, arguments.report_to, arguments.save_strategy = 1, [], "no"
    arguments.disable_tqdm, arguments.learning_rate = True, RATE
    dtype = torch.bfloat16 if job["precision"] == "bf16" else torch.float32
    if job.get("code"):  # beside the file
        names = {"MODEL": model}
        exec(job["code"], names)
        loaded = names["model"]
    else:
        loaded = AutoModelForCausalLM.from_pretrained(model, torch_dtype=dtype)
    loaded.config.use_cache = False
    Trainer(model=loaded, args=arguments, train_dataset=dataset).train()


def with_module(path, model, dataset):
    import importlib.util

    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    tuned = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tuned)
    mesh = tuned.start()
    prepared = tuned.prepare(tuned.load(model), mesh)
    optimizer = tuned.make_optimizer(prepared, RATE)
    for batches in tuned.optimizer_steps(tuned.loader(dataset)):
        tuned.train_step(prepared, optimizer, batches)


def as_probe(values):
    from workers.probe.device import open_device
    from workers.probe.spec import parse_spec
    from workers.probe.stack import build_stack, optimizer_step

    spec = parse_spec(values)
    device = open_device("cpu", Phase(), local_rank=dist.get_rank(), limit_bytes=None)
    stack = build_stack(spec, device)
    stack.set_accumulation(spec.accumulation_counts[-1])
    size = (spec.settings.micro_batch_size, spec.sequence_length)
    for _ in range(2):
        batches = [torch.randint(0, 64, size) for _ in range(spec.accumulation_counts[-1])]
        optimizer_step(stack, batches, lambda _: None)


def main():
    model, jobs = sys.argv[1], json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    setattr(dist, "init_process_group", lambda *_, **__: None)  # noqa: B010  (modules join too)
    enter_fsdp()
    from accelerate.state import AcceleratorState, GradientState

    for job in jobs:
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
        facts = Facts()
        with as_launched(job["path"] if job["kind"] == "accelerate" else None), facts.of():
            train(job, model)
        if dist.get_rank() == 0:
            told = {"name": job["name"], "kind": job["kind"], "optimizer_steps": len(facts.steps)}
            print(json.dumps({**told, **facts.steps[-1]}), flush=True)
    dist.barrier()
    os._exit(0)  # threads of libraries that still run can abort an orderly end


if __name__ == "__main__":
    main()
