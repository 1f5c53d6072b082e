"""Runs a training script on this machine's GPU as it is, and writes down what its steps took.

    python -P script_run.py OUT STEPS SCRIPT [ARGUMENTS]

The script is the only rank of its world. Of each of its optimizer's steps the peaks of torch's CUDA
allocator and the seconds are kept, of one more the kernels by name; then it ends. It imports torch
alone.
"""

import json
import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any

ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1",
         "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}  # fmt: skip
"""What torchrun would set."""
KERNELS = 40
"""Of the profiled step, the longest by name."""


class Watch:
    """What is seen of a script's steps.

    Args:
        out: the file that is written at the end.
        steps: of which peaks and times are kept.
    """

    def __init__(self, out: Path, steps: int) -> None:
        self._out, self._last = out, steps
        self._rows: list[dict[str, float]] = []
        self._profiler: Any = None
        self._began = time.perf_counter()

    def after_step(self, *_: object) -> None:
        """Keep a step; end the process after the profiled one."""
        import torch

        torch.cuda.synchronize()
        now = time.perf_counter()
        if self._profiler is not None:
            self._end()
        self._rows.append({
            "seconds": now - self._began,
            "allocated_bytes": torch.cuda.max_memory_allocated(),
            "reserved_bytes": torch.cuda.max_memory_reserved(),
        })  # fmt: skip
        if len(self._rows) == self._last:
            self._write({})  # a profiler that ends the process takes none of it along
            self._profiler = torch.profiler.profile()
            self._profiler.start()
        torch.cuda.reset_peak_memory_stats()
        self._began = time.perf_counter()

    def _end(self) -> None:
        import torch

        self._profiler.stop()
        ran = [event for event in self._profiler.key_averages()
               if event.device_type == torch.autograd.DeviceType.CUDA
               and not event.is_user_annotation]  # fmt: skip
        ran.sort(key=lambda event: event.self_device_time_total, reverse=True)
        kernels = [
            {"kernel": event.key[:200], "calls": event.count,
             "seconds": event.self_device_time_total / 1e6}
            for event in ran
        ]  # fmt: skip
        self._write({"kernels": kernels[:KERNELS]})
        os._exit(0)  # the script would go on

    def _write(self, more: dict[str, Any]) -> None:
        import torch

        told = {"torch": torch.__version__, "gpu": torch.cuda.get_device_name(),
                "steps": self._rows, **more}  # fmt: skip
        self._out.write_text(json.dumps(told), encoding="utf-8")


def filled(to_empty: Any) -> Any:
    """``to_empty`` with numbers in the parameters: products of zeros take a tenth less time."""
    import torch

    def called(module: Any, **options: Any) -> Any:
        module = to_empty(module, **options)
        with torch.no_grad():
            for parameter in module.parameters():
                part = getattr(parameter, "_local_tensor", parameter)
                part.fill_(1.0) if part.dim() == 1 else part.normal_(std=0.02)
        return module

    return called


def main(out: Path, steps: int, argv: list[str]) -> None:
    from torch import nn
    from torch.optim import optimizer

    for name, value in ALONE.items():
        os.environ.setdefault(name, value)
    watch = Watch(out, steps)
    optimizer.register_optimizer_step_post_hook(watch.after_step)
    nn.Module.to_empty = filled(nn.Module.to_empty)  # type: ignore[method-assign]
    sys.argv = argv
    sys.path.insert(0, str(Path(argv[0]).parent))
    runpy.run_path(argv[0], run_name="__main__")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
