"""What every dry run needs, imported once before any is forked."""

import contextlib
import importlib
import os

import torch

MODULES: tuple[str, ...] = ("transformers.models.llama.modeling_llama",)


def preload() -> None:
    """Import what libraries import late; what is not there is left to the dry run."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    torch.set_num_threads(1)
    for name in MODULES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
