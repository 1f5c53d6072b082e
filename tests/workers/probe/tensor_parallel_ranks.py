"""Four ranks that train tiny models with tensor parallelism, case after case.

    PYTHONPATH=.:tests/workers/probe python tensor_parallel_ranks.py OUTPUT_FOLDER MODEL...

The ranks are forked from one process, so that the imports, half of the time otherwise, are
done once. They are a 2 x 2 mesh (dp, tp). Cases without data parallelism run on the two
tensor-parallel pairs side by side, half of the models each; the others run on all four.
Rank 0 of each pair also trains each model alone, which is what the cases are compared with.
"""

import json
import multiprocessing
import multiprocessing.connection
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tensor_parallel_cases import (
    ACCUMULATION,
    COMMON,
    MICRO_BATCH_SIZE,
    MODELS,
    SEQUENCE_LENGTH,
    STEPS,
    VOCABULARY,
    Case,
    tensor_parallel_cases,
    two_dimensional_cases,
)
from torch import nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.loss.loss_utils import ForCausalLMLoss
from transformers.modeling_layers import GradientCheckpointingLayer

from workers.probe import tensor_parallel
from workers.probe.instruments import total_gradient_norm
from workers.probe.tensor_parallel import modules
from workers.probe.tensor_parallel.modules import VocabParallelLoss
from workers.probe.tensor_parallel.sequence import Axis

RANKS = 4


def build(name: str, *, checkpointing: bool = False) -> nn.Module:
    fields = {**COMMON, **MODELS[name]}
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():  # norms and biases that are not the same everywhere
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model.train()


def batches(step: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(100 + step)
    shape = (ACCUMULATION, MICRO_BATCH_SIZE, SEQUENCE_LENGTH)
    return list(torch.randint(0, VOCABULARY, shape, generator=generator))


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(input_ids=tokens, labels=tokens, use_cache=False).loss
    return loss


def train(
    model: nn.Module,
    *,
    take: Callable[[torch.Tensor], torch.Tensor] = lambda tokens: tokens,
    mean: Callable[[torch.Tensor], torch.Tensor] = lambda loss: loss,
    sync: Callable[[bool], None] = lambda last: None,
    autocast: bool = False,
) -> dict[str, Any]:
    """Losses and gradient norms of a few optimizer steps."""
    # The epsilon keeps gradients that are but rounding noise from becoming whole steps.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-6)
    result: dict[str, Any] = {"losses": [], "norms": []}
    for step in range(STEPS):
        total = torch.zeros(())
        for i, tokens in enumerate(batches(step)):
            sync(i == ACCUMULATION - 1)
            with torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext():
                loss = loss_of(model, take(tokens))
            (loss / ACCUMULATION).backward()
            total += loss.detach().float() / ACCUMULATION
        tensor_parallel.reduce_partial_gradients(model.parameters())
        result["losses"].append(mean(total).item())
        result["norms"].append(total_gradient_norm(model.parameters()).item())
        optimizer.step()
        optimizer.zero_grad()
    return result


def train_case(case: Case, mesh: DeviceMesh, alone: dict[str, nn.Module]) -> dict[str, Any]:
    model = build(case.model, checkpointing=case.checkpointing)
    if case.precision == "bf16":
        model.to(torch.bfloat16)
    with _faulty() if case.fault else nullcontext():
        tensor_parallel.parallelize(model, mesh["tp"], recompute_allgather=case.recompute_allgather)
        wrap(model, case, mesh)
        take, mean, sync = _data_parallel(model, case, mesh)
        autocast = case.precision == "autocast"
        result = train(model, take=take, mean=mean, sync=sync, autocast=autocast)
        result["parameter_error"] = parameter_error(model, alone.get(case.model))
        result |= observe(model, take(batches(0)[0]))
    return result


@contextmanager
def _faulty() -> Iterator[None]:
    right = modules.replicated_weight
    modules.replicated_weight = modules.split_weight
    try:
        yield
    finally:
        modules.replicated_weight = right


def wrap(model: Any, case: Case, mesh: DeviceMesh) -> None:
    if not case.data_parallel:
        return
    apply: Any = replicate if case.data_parallel == "replicate" else fully_shard
    axes: Any = ("dp_replicate", "dp_shard") if case.data_parallel == "hybrid_shard" else "dp"
    options: dict[str, Any] = {"mesh": mesh[axes]}
    if case.precision == "fsdp_mixed":
        options["mp_policy"] = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32
        )
    for layer in model.model.layers:
        apply(layer, **options)
    if apply is fully_shard:  # grouped as accelerate does
        ends = [model.model.embed_tokens, model.model.norm, model.lm_head]
        for group in [ends] if case.model == "tied_llama" else [ends[:1], ends[1:]]:
            apply(group, **options)
    apply(model, **options)


def _data_parallel(model: Any, case: Case, mesh: DeviceMesh) -> tuple[Any, Any, Any]:
    if not case.data_parallel:
        return (lambda tokens: tokens), (lambda loss: loss), (lambda last: None)
    rank, size = dist.get_rank() // mesh["tp"].size(), dist.get_world_size() // 2

    def mean(loss: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(loss)  # tensor-parallel ranks have the same loss
        return loss / dist.get_world_size()

    def sync(last: bool) -> None:
        model.set_requires_gradient_sync(last or not case.no_sync)

    return (lambda tokens: tokens.chunk(size)[rank]), mean, sync


def parameter_error(model: nn.Module, alone: nn.Module | None) -> float:
    """The largest difference to the model that was trained alone, on the ranks that have it."""
    whole = {n: p.full_tensor() for n, p in model.named_parameters() if isinstance(p, DTensor)}
    if alone is None:
        return 0.0  # the other pair has it
    expected = dict(alone.named_parameters())
    assert whole.keys() == expected.keys()
    return max(float((whole[n].detach() - expected[n].detach()).abs().max()) for n in whole)


def observe(model: nn.Module, tokens: torch.Tensor) -> dict[str, Any]:
    """The collectives of one micro-batch, and the bytes that its forward saves."""
    known = {_storage(p).data_ptr() for p in model.parameters()}
    saved: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = _storage(tensor)
        if storage.data_ptr() not in known:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with CommDebugMode() as mode:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            loss = loss_of(model, tokens)
        forward = _counts(mode)
        loss.backward()
        both = _counts(mode)
    model.zero_grad()
    return {
        "forward": dict(forward),
        "backward": dict(both - forward),
        "saved_bytes": sum(saved.values()),
    }


def _storage(tensor: torch.Tensor) -> torch.UntypedStorage:
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.untyped_storage()


def _counts(mode: CommDebugMode) -> Counter[str]:
    """Calls by kind: all_gather, reduce_scatter, all_reduce."""
    kinds = {"gather": "all_gather", "scatter": "reduce_scatter", "reduce": "all_reduce"}
    counts: Counter[str] = Counter()
    for op, calls in mode.get_comm_counts().items():
        counts[next(kind for part, kind in kinds.items() if part in str(op))] += calls
    return counts


def refusals(mesh: DeviceMesh) -> dict[str, str]:
    """What ``parallelize`` and the first forward say of sizes that do not fit."""
    fields = {**COMMON, "num_key_value_heads": 1}
    odd_heads = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **fields))
    fields = {**COMMON, "intermediate_size": 49}
    odd_mlp = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **fields))
    whole = build("mistral")
    tensor_parallel.parallelize(whole, mesh["tp"], recompute_allgather=False)
    attempts: dict[str, Callable[[], Any]] = {
        "heads": lambda: tensor_parallel.parallelize(
            odd_heads, mesh["tp"], recompute_allgather=False
        ),
        "mlp": lambda: tensor_parallel.parallelize(odd_mlp, mesh["tp"], recompute_allgather=False),
        "mesh": lambda: tensor_parallel.parallelize(odd_heads, mesh, recompute_allgather=False),
        "sequence": lambda: loss_of(whole, batches(0)[0][:, 1:]),
    }
    return {name: _message(attempt) for name, attempt in attempts.items()}


def _message(attempt: Callable[[], Any]) -> str:
    try:
        attempt()
    except ValueError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def norms_of_placements(mesh: DeviceMesh) -> dict[str, float]:
    """The norm of gradients that are split in every way, and of the whole gradients."""
    torch.manual_seed(3)
    ways = [(Shard(0), Replicate()), (Replicate(), Shard(1)), (Shard(1), Shard(0))]
    wholes = [torch.randn(6, 5) for _ in range(4)]
    parameters = []
    for whole, placements in zip(wholes, ways, strict=False):
        split = distribute_tensor(whole, mesh, placements)
        parameters.append(nn.Parameter(torch.zeros_like(split)))
        parameters[-1].grad = split
    parameters.append(nn.Parameter(torch.zeros(6, 5)))
    parameters[-1].grad = wholes[-1]
    parameters.append(nn.Parameter(torch.zeros(2)))  # without a gradient
    return {
        "split": total_gradient_norm(parameters).item(),
        "whole": torch.stack(wholes).norm().item(),
    }


def partial_gradient(mesh: DeviceMesh) -> dict[str, Any]:
    """A gradient of ones that is yet to be summed: refused, then summed."""
    ones = DTensor.from_local(torch.ones(4), mesh["tp"], [Partial()], run_check=False)
    parameter = nn.Parameter(distribute_tensor(torch.zeros(4), mesh["tp"], [Replicate()]))
    parameter.grad = ones
    refused = _message(lambda: total_gradient_norm([parameter]))
    tensor_parallel.reduce_partial_gradients([parameter])
    return {"refused": refused, "summed": total_gradient_norm([parameter]).item()}


def loss_errors(mesh: DeviceMesh) -> dict[str, float]:
    """The largest difference to transformers' own loss, or its gradient, by how it is called."""
    axis = Axis.of(mesh["tp"])
    torch.manual_seed(4)
    logits = torch.randn(MICRO_BATCH_SIZE, SEQUENCE_LENGTH, VOCABULARY)
    labels = torch.randint(0, VOCABULARY, logits.shape[:2])
    labels[0, 3:7] = -100
    calls: dict[str, dict[str, Any]] = {
        "mean": {"labels": labels},
        "sum": {"labels": labels, "num_items_in_batch": torch.tensor(7)},
        "shifted": {"labels": None, "shift_labels": labels},
    }
    return {name: _loss_error(logits, axis, arguments) for name, arguments in calls.items()}


def _loss_error(logits: torch.Tensor, axis: Axis, arguments: dict[str, Any]) -> float:
    whole = logits.clone().requires_grad_()
    expected = ForCausalLMLoss(whole, vocab_size=VOCABULARY, **arguments)
    expected.backward()
    part = logits.chunk(axis.size, -1)[axis.rank].clone().requires_grad_()
    loss = VocabParallelLoss(axis)(part, vocab_size=VOCABULARY, **arguments)
    loss.backward()
    assert whole.grad is not None
    assert part.grad is not None
    of_gradient = (part.grad - whole.grad.chunk(axis.size, -1)[axis.rank]).abs().max()
    return max(float(of_gradient), float((loss - expected).abs()))


def run_rank(rank: int, folder: Path, models: Sequence[str]) -> None:
    torch.set_num_threads(1)
    rendezvous = f"file://{folder / 'rendezvous'}"
    dist.init_process_group(
        "gloo",
        init_method=rendezvous,
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=120),  # a rank whose peers are gone ends too
    )
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    results = run_cases(rank, mesh, models)
    results["hooks_are_checkpointed"] = "__call__" in vars(GradientCheckpointingLayer)
    results["refusals"] = refusals(mesh)
    results["norms_of_placements"] = norms_of_placements(mesh)
    results["partial_gradient"] = partial_gradient(mesh)
    results["loss_errors"] = loss_errors(mesh)
    (folder / f"{rank}.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


def run_cases(rank: int, mesh: DeviceMesh, models: Sequence[str]) -> dict[str, Any]:
    own = models[rank // 2 :: 2]
    alone = {name: build(name) for name in own}
    results: dict[str, Any] = {}
    if rank % 2 == 0:
        results |= {name: train(model) for name, model in alone.items()}
    for case in tensor_parallel_cases():
        if case.model in own:
            results[case.name] = train_case(case, mesh, alone)
    hybrid = init_device_mesh("cpu", (2, 1, 2), mesh_dim_names=("dp_replicate", "dp_shard", "tp"))
    for case in (case for case in two_dimensional_cases() if case.model in models):
        on = hybrid if case.data_parallel == "hybrid_shard" else mesh
        results[case.name] = train_case(case, on, alone)
    return results


def main(folder: Path, models: Sequence[str]) -> int:
    """The exit status: 0 if every rank ended well; if one did not, the others are ended."""
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=run_rank, args=(rank, folder, models)) for rank in range(RANKS)]
    for process in ranks:
        process.start()
    running = list(ranks)
    while running and not any(process.exitcode for process in ranks):
        multiprocessing.connection.wait([process.sentinel for process in running])
        running = [process for process in running if process.exitcode is None]
    for process in running:
        process.kill()
    return int(any(process.exitcode for process in ranks))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
