"""Rates of a rank's device and links, timed case by case: an order like a probe's.

Every rank times the same cases at the same time, since ranks share memory, power and links. It
returns raw seconds; the rates that follow from them are not decided here.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from workers.probe.device import Device
from workers.probe.group import Meeting, gather_into, join, meet, reduce_scatter_into
from workers.probe.model import build_on_meta, move_buffers
from workers.probe.optimizers import make_optimizer
from workers.probe.record import Record, recording
from workers.probe.tracker import Phase

FORMAT = 1
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
# Spread of numbers, that of weights in training: a product of zeros would draw less power, and run
# faster.
WEIGHTS_STD = 0.02
# Seconds of work that is queued before the device is waited for: waiting costs about 20 us on CUDA.
BATCH_S = 0.005
# Calls of one batch.
MOST_AT_ONCE = 200
# Batches that are timed, at least and at most.
REPETITIONS = (3, 12)

Work = Callable[[], object]
Case = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationSpec:
    """The cases of one calibration, in the order in which they are timed."""

    format: int  # version of this file's form
    device: str  # cpu or cuda
    world_size: int  # ranks
    gpus_per_node: int  # ranks that share a node, real or not
    cases: list[dict[str, Any]]  # each with its `kind` and sizes, as :func:`work_of` takes them
    case_s: float  # seconds for the repetitions of one case, about
    budget_s: float  # seconds after which no further case is begun

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise ValueError(f"format: got {self.format}; this program reads {FORMAT}")


def calibrate(order: Mapping[str, Any], meeting: Meeting) -> Record:
    """Times an order's cases on this process's rank; its record."""
    started = time.monotonic()
    with recording() as own:
        if odd := set(order) ^ {f.name for f in fields(CalibrationSpec)}:
            raise ValueError(f"unknown or missing fields {sorted(odd)}")
        spec = CalibrationSpec(**order)
        device = own.open_device(spec.device)
        join(spec.world_size, own.rank, device.backend, meeting, device.torch_device)
        until = started + spec.budget_s
        own.record.readings = time_cases(spec, own.rank, device, own.phase, until=until)
        own.record.outcome = "ok"
        meet(device.torch_device)  # no rank leaves while another still talks to it
        dist.destroy_process_group()
    return own.record


def time_cases(
    spec: CalibrationSpec, rank: int, device: Device, phase: Phase, *, until: float
) -> list[dict[str, Any]]:
    """The cases that are begun by ``until`` on the slowest rank, each with its calls' seconds."""
    # this rank's neighbors in its node, and its like in the other nodes; all at it at once
    per_node, world = spec.gpus_per_node, spec.world_size
    nodes = [list(range(first, first + per_node)) for first in range(0, world, per_node)]
    across = [list(range(local, world, per_node)) for local in range(per_node)]
    groups: dict[str, dist.ProcessGroup] = {}
    for name, parts in (("intra", nodes), ("inter", across)):
        if len(parts[0]) > 1:
            made = [(dist.new_group(ranks), ranks) for ranks in parts]  # by all, in one order
            groups[name] = next(group for group, ranks in made if rank in ranks)
    watch = Stopwatch(device, spec.case_s)
    readings: list[dict[str, Any]] = []
    for case in spec.cases:
        sizes = (f"{k}={v}" for k, v in case.items() if k not in ("kind", "model"))
        phase.name = f"{case['kind']} {' '.join(sizes)}"
        if watch.slowest(max(0.0, time.monotonic() - until)) > 1e-6:
            break
        with torch.set_grad_enabled(case["kind"] == "layers"):
            seconds = watch.seconds_of(work_of(case, device.torch_device, groups))
        readings.append({**case, "seconds": seconds})
    return readings


class Stopwatch:
    """Times work on one device, with all ranks at it together.

    A batch of calls is queued and then waited for, by the host's clock: what the device does alone
    takes the device's time, what the host cannot launch quickly enough takes the host's, as in a
    training step.
    """

    def __init__(self, device: Device, case_s: float) -> None:
        self._device = device
        self._case_s = case_s

    def seconds_of(self, work: Work) -> list[float]:
        """Seconds of one call, in each batch; ``work`` must do the same on every rank.

        A call that takes all of a case's seconds is not repeated more than must be.
        """
        least, most = REPETITIONS
        self._batch_s(work, 1)  # kernels are loaded and chosen, pools and communicators are made
        own = self._batch_s(work, 1)
        once = self.slowest(own)
        if once >= self._case_s:
            return [own, *(self._batch_s(work, 1) for _ in range(least - 1))]
        once = self.slowest(self._batch_s(work, 1))
        calls = min(MOST_AT_ONCE, max(1, round(BATCH_S / once)))
        batches = max(least, min(most, int(self._case_s / (once * calls))))
        self.slowest(0.0)  # all ranks begin together
        return [self._batch_s(work, calls) / calls for _ in range(batches)]

    def slowest(self, seconds: float) -> float:
        """The largest over all ranks, so that all decide alike."""
        found = torch.tensor(max(seconds, 1e-9), dtype=torch.float64)
        found = found.to(self._device.torch_device)
        if dist.is_initialized():
            dist.all_reduce(found, op=dist.ReduceOp.MAX)
        return float(found)

    def _batch_s(self, work: Work, calls: int) -> float:
        self._device.synchronize()
        started = time.perf_counter()
        for _ in range(calls):
            work()
        self._device.synchronize()
        return time.perf_counter() - started


def work_of(
    case: Case, device: torch.device, groups: Mapping[str, dist.ProcessGroup] | None = None
) -> Work:
    """The work of one call of a case; making it is not timed."""
    kind, dtype = case["kind"], DTYPES[case["dtype"]]

    def numbers(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=device).normal_(0, WEIGHTS_STD)

    if kind == "copy":  # elements are read and written
        source = numbers(case["elements"])
        target = torch.empty_like(source)
        return lambda: target.copy_(source)
    if kind == "layers":
        return _layers(case, device)
    if kind == "update":  # AdamW's step on some parameters of so many elements together
        count = case["tensors"]
        each = case["elements"] // count
        model = nn.ParameterList([nn.Parameter(numbers(each)) for _ in range(count)])
        for parameter in model:
            parameter.grad = torch.full_like(parameter, 1e-3)
        return make_optimizer("adamw", model).step
    if kind == "collective":
        assert groups is not None
        ranks = groups[case["axis"]]
        # zeros, which no sum makes overflow
        all_parts = torch.zeros(case["elements"], dtype=dtype, device=device)
        own_part = torch.zeros(case["elements"] // ranks.size(), dtype=dtype, device=device)
        collectives: Mapping[str, Work] = {
            "all_gather": lambda: gather_into(all_parts, own_part, group=ranks),
            "reduce_scatter": lambda: reduce_scatter_into(own_part, all_parts, group=ranks),
            "all_reduce": lambda: dist.all_reduce(all_parts, group=ranks),
        }
        return collectives[case["op"]]
    # rows of tokens through a square weight of so many channels, as in ``nn.Linear``
    rows, width = case["rows"], case["width"]
    tokens, weight = numbers(rows, width), numbers(width, width)
    out = torch.empty_like(tokens)
    if kind == "matrix":
        return lambda: torch.mm(tokens, weight.t(), out=out)
    assert kind == "both", kind
    assert groups is not None
    times, part, group = case["products"], case["part"], groups[case["axis"]]
    whole = torch.zeros(case["elements"], dtype=dtype, device=device)

    def matrices_beside_a_collective() -> None:
        """Or each of the two by itself, as ``part`` says."""
        sent = dist.all_reduce(whole, group=group, async_op=True) if part != "matrix" else None
        for _ in range(times if part != "collective" else 0):
            torch.mm(tokens, weight.t(), out=out)
        if sent is not None:
            sent.wait()

    return matrices_beside_a_collective


def _layers(case: Case, device: torch.device) -> Work:
    model: nn.Module = build_on_meta(case["model"], DTYPES[case["dtype"]])
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            values = torch.empty_like(parameter, device=device)
            values.fill_(1.0) if values.ndim == 1 else values.normal_(0, WEIGHTS_STD)
            module.register_parameter(name, nn.Parameter(values))
    move_buffers(model, device)
    shape = (case["micro_batch_size"], case["sequence_length"])
    vocabulary = int(case["model"]["vocab_size"])
    batch = torch.randint(0, vocabulary, shape, generator=torch.Generator().manual_seed(0))
    batch = batch.to(device)

    def step() -> None:
        loss = model(input_ids=batch, labels=batch, use_cache=False).loss
        loss.backward()
        model.zero_grad(set_to_none=True)

    return step
