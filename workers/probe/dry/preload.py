"""What every dry run needs, imported once before any is forked."""

import contextlib
import gc
import importlib
import os
import sys
from collections.abc import Iterator

import torch

MODULES: tuple[str, ...] = ("transformers.models.llama.modeling_llama",)


def preload() -> None:
    """Import what libraries import late; what is not there is left to the dry run."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    torch.set_num_threads(1)
    with _without_torchao():
        for name in MODULES:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
        importlib.import_module("workers.probe.dry.answer")
    gc.freeze()  # nothing imported is ever freed: spare each dry run the search


@contextlib.contextmanager
def _without_torchao() -> Iterator[None]:
    """Keep transformers from importing torchao, for quantized models that nobody trains here.

    That takes a second and prints warnings. The 8-bit optimizer imports it after this.
    """
    if "torchao" in sys.modules:
        yield
        return
    hidden: dict[str, object] = {"torchao": None}
    sys.modules.update(hidden)  # type: ignore[arg-type]
    try:
        yield
    finally:
        sys.modules.pop("torchao", None)
