"""torch, if the script has imported it: nothing here imports it."""

import sys
from typing import Any


def torch_here() -> Any:
    """The module; ``None`` where it is not imported, or not to its end."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "autograd") and hasattr(torch, "optim") else None


def cuda_here() -> Any:
    """``torch.cuda``, if the script computes on it; else ``None``."""
    torch = torch_here()
    if torch is None or not torch.cuda.is_initialized():
        return None
    return torch.cuda
