"""The optimizers that a workload may name."""

from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from workers.probe.errors import OptimizerUnavailableError

# Usual for decoders (GPT-3's small models), and nothing diverges in a probe's few steps.
LEARNING_RATE = 3e-4

# Elements from which torchao quantizes a state (``_new_buffer`` in torchao/optim/adam.py).
_QUANTIZED_FROM = 4096


def make_optimizer(
    name: str, model: nn.Module, *, foreach: bool | None = None, updates: bool = True
) -> torch.optim.Optimizer:
    """The optimizer over what is trained of ``model``, with torch's own defaults.

    Args:
        name: adamw, adamw_fused, adamw_8bit or sgd.
        model: with its parameters in their final, sharded form.
        foreach: torch's own choice, if ``None``: true on CUDA, false on a CPU.
        updates: off where there are no values to update; the 8-bit optimizer then only makes
            its state, because its compiled step does not run on fake tensors, and with ``foreach``
            what that step takes for a time on CUDA.

    Raises:
        OptimizerUnavailableError: the 8-bit optimizer's library is not installed. Its step
            raises the same where it cannot be compiled.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    if name in ("adamw", "adamw_fused"):
        fused = name == "adamw_fused"
        kernels: dict[str, Any] = {"fused": True} if fused else {"foreach": foreach}
        return torch.optim.AdamW(parameters, lr=LEARNING_RATE, **kernels)
    if name == "sgd":
        return torch.optim.SGD(parameters, lr=LEARNING_RATE, foreach=foreach)
    assert name == "adamw_8bit", name
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
