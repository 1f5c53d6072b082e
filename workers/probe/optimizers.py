"""The optimizers that a workload may name."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import _disable_current_modes

from workers.probe.errors import OptimizerUnavailableError

# Usual for decoders (GPT-3's small models), and nothing diverges in a probe's few steps.
LEARNING_RATE = 3e-4

# Elements from which torchao quantizes a state (``_new_buffer`` in torchao/optim/adam.py).
_QUANTIZED_FROM = 4096

# Classes of ``bitsandbytes.optim``.
_BITSANDBYTES = {
    "adamw_bnb_8bit": "AdamW8bit",
    "paged_adamw_8bit": "PagedAdamW8bit",
    "lion": "Lion32bit",
}
# Why these do not step the DTensors of sharding and tensor parallelism, on torch 2.13: bitsandbytes
# 0.50.2 ends with "got mixed torch.Tensor and DTensor", or "does not have a sharding strategy
# registered", and on CUDA with an illegal memory access (its issue 1633); transformers 5.23's
# Adafactor with the first too. Muon's products are right, but what DTensor sends for them depends
# on ranks and shapes, and on a CPU differs from CUDA.
_NO_DTENSORS = {
    **dict.fromkeys(_BITSANDBYTES, "its kernels take no DTensors"),
    "adafactor": "its means of rows and columns are no DTensors",
    "muon": "what DTensor sends for its products is not followed",
}
# Elements of a parameter from which a paged state is in unified memory (``get_state_buffer`` in
# bitsandbytes/optim/optimizer.py, 0.50.2).
_PAGED_FROM = 100_000


def make_optimizer(
    name: str, model: nn.Module, *, foreach: bool | None = None, updates: bool = True
) -> torch.optim.Optimizer:
    """The optimizer over what is trained of ``model``, with its library's own defaults.

    Args:
        name: one of ``Optimizer`` in tuner/core/workload.py.
        model: with its parameters in their final, sharded form.
        foreach: torch's own choice, if ``None``: true on CUDA, false on a CPU.
        updates: off where there are no values to update; torchao's optimizer then only makes
            its state, because its compiled step does not run on fake tensors, and with ``foreach``
            what that step takes for a time on CUDA.

    Raises:
        OptimizerUnavailableError: the optimizer's library is not installed. torchao's step raises
            the same where it cannot be compiled.
        ValueError: it does not step the DTensors of sharding or tensor parallelism.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    if name in _NO_DTENSORS and any(isinstance(p, DTensor) for p in parameters):
        raise ValueError(f"{name}: {_NO_DTENSORS[name]}")
    if name in ("adamw", "adamw_fused"):
        fused = name == "adamw_fused"
        kernels: dict[str, Any] = {"fused": True} if fused else {"foreach": foreach}
        return torch.optim.AdamW(parameters, lr=LEARNING_RATE, **kernels)
    if name == "sgd":
        return torch.optim.SGD(parameters, lr=LEARNING_RATE, foreach=foreach)
    if name == "adafactor":
        from transformers.optimization import Adafactor

        # as the Trainer has it (``_get_adafactor`` in transformers/trainer_optimizer.py, 5.23)
        own: torch.optim.Optimizer = Adafactor(
            parameters, lr=LEARNING_RATE, scale_parameter=False, relative_step=False
        )
        return own
    if name == "muon":
        return _muon(model, parameters, foreach)
    if name in _BITSANDBYTES:
        return _of_bitsandbytes(name, parameters)
    assert name == "adamw_8bit", name
    return _of_torchao(parameters, foreach=foreach, updates=updates)


def in_host_memory(name: str, states: Iterable[Mapping[str, Any]]) -> Iterator[torch.Tensor]:
    """State on CUDA that torch's allocator of the device does not hold: torch's step counts, which
    are scalars, and paged moments, which are in unified memory."""
    for state in states:
        for key, value in state.items():
            if not torch.is_tensor(value):
                continue
            moment = name == "paged_adamw_8bit" and key in ("state1", "state2")
            if value.dim() == 0 or (moment and value.numel() >= _PAGED_FROM):
                yield value


def _muon(
    model: nn.Module, parameters: list[nn.Parameter], foreach: bool | None
) -> torch.optim.Optimizer:
    """Muon of the matrices between embedding and output head, and AdamW of all else, as Muon's
    authors combine them (https://kellerjordan.github.io/posts/muon/) and torch's own docstring."""
    inner: Any = model
    embeddings = (m for m in model.modules() if isinstance(m, nn.Embedding))
    ends = {id(m.weight) for m in (*embeddings, inner.get_output_embeddings())}
    hidden = [p for p in parameters if p.ndim == 2 and id(p) not in ends]
    rest = [p for p in parameters if p.ndim != 2 or id(p) in ends]

    class Both(torch.optim.Muon):  # type: ignore[misc,name-defined,unused-ignore]
        """Steps AdamW after Muon; what both keep is one mapping."""

        def __init__(self) -> None:
            super().__init__(hidden, lr=LEARNING_RATE)
            self.others: torch.optim.Optimizer | None = None
            if rest:
                self.others = torch.optim.AdamW(rest, lr=LEARNING_RATE, foreach=foreach)
                self.others.state = self.state

        def step(self, closure: Any = None) -> Any:
            loss = super().step(closure)
            if self.others is not None:
                self.others.step()
            return loss

        def zero_grad(self, set_to_none: bool = True) -> None:
            super().zero_grad(set_to_none)
            if self.others is not None:
                self.others.zero_grad(set_to_none)

    return Both()


def _of_bitsandbytes(name: str, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Its kernels are single operators: no tracker sees what those for a CPU take for a time, and
    CUDA's take nothing."""
    try:
        with _disable_current_modes():  # the tables of 8 bits have values
            from bitsandbytes import optim
    except ImportError as error:
        raise OptimizerUnavailableError(
            f"{name} needs bitsandbytes: pip install 'tuner[8bit]'"
        ) from error
    # on a CPU nothing is paged, which the library says in a warning
    paged = name == "paged_adamw_8bit" and parameters[0].device.type == "cuda"
    kind = "adamw_bnb_8bit" if name == "paged_adamw_8bit" and not paged else name
    with _disable_current_modes():
        made: torch.optim.Optimizer = getattr(optim, _BITSANDBYTES[kind])(
            parameters, lr=LEARNING_RATE
        )
    return made


def _of_torchao(
    parameters: list[nn.Parameter], *, foreach: bool | None, updates: bool
) -> torch.optim.Optimizer:
    from torch._dynamo.exc import TorchDynamoException  # takes a second

    try:
        from torchao.optim import AdamW8bit
    except ImportError as error:
        raise OptimizerUnavailableError(
            "adamw_8bit needs torchao: pip install 'tuner[8bit]'"
        ) from error

    class Stepped(AdamW8bit):  # type: ignore[misc]
        """torchao compiles the step, which no dispatch mode may watch."""

        def step(self, closure: Any = None) -> Any:
            try:
                with _disable_current_modes():
                    return super().step(closure)
            except TorchDynamoException as error:
                # no compiler; or torchao 0.18 with DTensors in bf16, on torch 2.13
                raise OptimizerUnavailableError(
                    f"adamw_8bit must be compiled, which fails here: {error}"
                ) from error

    class StateOnly(AdamW8bit):  # type: ignore[misc]
        """torchao's own state, and no step; of that, what it would take for a time."""

        def step(self, closure: Any = None) -> None:
            for parameter in (p for p in parameters if p.grad is not None):
                if not (state := self.state[parameter]):
                    state["step"] = torch.tensor(0.0)
                    state["exp_avg"] = self._new_buffer(parameter, True)
                    state["exp_avg_sq"] = self._new_buffer(parameter, False)
                moment = getattr(state["exp_avg"], "_local_tensor", state["exp_avg"])
                if foreach and hasattr(moment, "codes"):
                    # Both moments in fp32, and the new scales of their blocks: a block must be
                    # known whole before its scale is (``single_param_adam`` in
                    # torchao/optim/adam.py); inductor fuses all else (torch 2.13, torchao 0.18).
                    # What is not quantized is updated in one kernel.
                    scales = [torch.empty_like(moment.scale) for _ in range(2)]
                    moments = [torch.empty_like(moment.codes, dtype=torch.float32) for _ in "mv"]
                    del scales, moments

    if updates:
        stepped: torch.optim.Optimizer = Stepped(parameters, lr=LEARNING_RATE)
        return stepped
    optimizer: torch.optim.Optimizer = StateOnly(parameters, lr=LEARNING_RATE)
    with _disable_current_modes():  # torchao reads its tables' values once, and keeps them
        for signed in (True, False):
            optimizer._new_buffer(torch.zeros(_QUANTIZED_FROM), signed)  # type: ignore[attr-defined]
    return optimizer
