"""Starts commands that start processes, and a model for them to train."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
LAUNCH_S = 900.0
"""Seconds that a launch may take: about 10 on an idle machine."""
TOLD = ("ACCELERATE_", "FSDP_", "TUNED_")
"""Of variables by which another launch's settings would leak into this one."""

WARNINGS = "error::FutureWarning,ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"
"""What is written must be right for what comes; peft 0.21 itself asks for what transformers will
have no more."""


def launched(command, cwd=None, **environment):
    """What a command printed; it must succeed, and nothing of it is left."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(TOLD)}
    ours = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    # the scripts' torchrun is this Python's
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    environment = {**kept, **ours, "PATH": path, "PYTHONWARNINGS": WARNINGS, **environment}
    with _group(command, environment, cwd) as process:
        out, err = process.communicate(timeout=LAUNCH_S)
    assert process.returncode == 0, err[-4000:]
    return out


def all_json(out):
    """Lines of JSON that were printed."""
    return [json.loads(line) for line in out.splitlines() if line.startswith('{"')]


def save_tiny_llama(folder, *, tied=False, std=0.02, **shape):
    """A checkpoint of a Llama with 2 layers, in fp32; ``std`` is of its random weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.manual_seed(0)
    sizes = {
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "tie_word_embeddings": tied,
    }
    config = LlamaConfig(**{**sizes, **shape}, initializer_range=std)
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@contextlib.contextmanager
def _group(command, environment, cwd):
    """The command in a process group of its own, of which nothing is left afterwards."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
        cwd=cwd,
        env=environment,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
