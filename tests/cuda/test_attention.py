"""The kernel that torch really chooses for attention, and the memory of it, against the model's."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from tests.cuda.probing import probe_all
from tuner.core.cluster import parse_cluster
from tuner.core.configuration import Checkpointing, Settings
from tuner.core.framework import framework
from tuner.core.workload import Precision, Workload
from tuner.cost.memory.attention import Backend, Call, sdpa_backend
from tuner.cost.prediction import predict
from tuner.dryrun import DryRunner, dry_run_versions, plan_dry_runs
from tuner.dryrun.plan import rank_spec
from tuner.model import read_model_config

ASK = """
import itertools, json, sys, torch
names = {0: "math", 1: "flash", 2: "efficient", 3: "cudnn"}
found = []
for dtype, grouped, head_dim, masked, dropout in json.load(sys.stdin):
    def heads(count):
        shape = (1, 128, count, head_dim)
        made = torch.empty(shape, device="cuda", dtype=getattr(torch, dtype), requires_grad=True)
        return made.transpose(1, 2)
    q, kv = heads(8), heads(2 if grouped else 8)
    mask = torch.ones(1, 1, 128, 128, device="cuda", dtype=torch.bool) if masked else None
    given = {"scale": None, "enable_gqa": grouped}
    choice = torch._fused_sdp_choice(q, kv, kv, mask, 0.1 * dropout, mask is None, **given)
    found.append(names[choice])
print(json.dumps(found))
"""
"""What torch chooses for calls of which it is told on standard input."""
HEAD_DIMS = (64, 72, 84, 128, 192, 200, 256, 320)


@pytest.mark.parametrize(
    ("capability", "has_cudnn"),
    [
        ("9.0", False),
        *((each, True) for each in ("7.0", "7.5", "8.0", "8.6", "9.0", "10.0", "12.0")),
    ],
)
def test_the_kernel_is_the_one_that_torch_chooses(gpus, capability, has_cudnn):
    calls = [
        (dtype, grouped, head_dim, masked, dropout)
        for dtype in ("bfloat16", "float16", "float32")
        for grouped in (False, True)
        for head_dim in HEAD_DIMS
        for masked in (False, True)
        for dropout in (False, True)
        if not (grouped and masked)  # transformers repeats keys and values then
    ]
    gpus(1, capability=capability, **({"cudnn": 92000} if has_cudnn else {}))
    ran = subprocess.run(
        [sys.executable, "-c", ASK], input=json.dumps(calls), capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    major, minor = map(int, capability.split("."))
    expected = [
        sdpa_backend(
            Call(
                bits=32 if dtype == "float32" else 16, is_bf16=dtype == "bfloat16",
                grouped=grouped, head_dim=head_dim, masked=masked, dropout=dropout,
            ),
            (major, minor),
            has_cudnn=has_cudnn,
        )
        for dtype, grouped, head_dim, masked, dropout in calls
    ]  # fmt: skip
    chosen = map(Backend, json.loads(ran.stdout.splitlines()[-1]))
    assert dict(zip(calls, chosen, strict=True)) == dict(zip(calls, expected, strict=True))


SIZES = {
    "hidden_size": 512, "num_hidden_layers": 2, "num_attention_heads": 16, "vocab_size": 1024,
    "intermediate_size": 1024, "max_position_embeddings": 2048,
}  # fmt: skip
GROUPED = {"model_type": "qwen2", "num_key_value_heads": 4, **SIZES}
EVEN = {"model_type": "llama", "num_key_value_heads": 16, **SIZES}
WINDOWS = {
    "model_type": "gemma3_text", "num_key_value_heads": 4, "head_dim": 32, "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"], **SIZES,
}  # fmt: skip
DROPS_OUT = {
    "model_type": "gpt2", "n_embd": 512, "n_layer": 2, "n_head": 16, "vocab_size": 1024,
    "n_positions": 2048,
}  # fmt: skip
NONE, FULL = Checkpointing.NONE, Checkpointing.FULL
CASES = {
    "a100-80gb": [
        (GROUPED, Precision.FP32, NONE, {"math": 2}),
        (GROUPED, Precision.FP32, FULL, {"math": 2}),
        (EVEN, Precision.FP32, NONE, {"efficient": 2}),
        (GROUPED, Precision.BF16, NONE, {"flash": 2}),
        (WINDOWS, Precision.FP32, NONE, {"efficient": 1, "math": 1}),
    ],
    "t4": [
        (GROUPED, Precision.BF16, NONE, {"math": 2}),
        (EVEN, Precision.BF16, FULL, {"math": 2}),
        (GROUPED, Precision.BF16_MIXED, NONE, {"math": 2}),
        (WINDOWS, Precision.BF16, FULL, {"math": 2}),
        (DROPS_OUT, Precision.BF16, NONE, {"math": 2}),
    ],
}
"""Models on GPUs, and the kernels of their layers."""
TOKENS = 1024
CAPABILITIES = {"a100-80gb": "8.0", "t4": "7.5"}


@pytest.fixture(scope="module")
def runner():
    """The dry-run program, in an environment without the stand-in."""
    with DryRunner(jobs=2) as made:
        yield made


@pytest.mark.parametrize("gpu", CASES)
def test_memory_of_each_kernel(gpus, tmp_path, runner, gpu):
    """By dry run to half a percent, and by arithmetic within its interval."""
    cluster, stack = parse_cluster(gpu), framework("torch")
    asked = [
        (_workload(config, precision), Settings(micro_batch_size=2, activation_checkpointing=again))
        for config, precision, again, _ in CASES[gpu]
    ]
    profiles = [_profile(workload, cluster, one, runner) for workload, one in asked]
    gpus(1, capability=CAPABILITIES[gpu])
    found = probe_all([_spec(workload, cluster, one) for workload, one in asked], tmp_path)
    wrong = {}
    for case, (workload, one), profile, probed in zip(
        CASES[gpu], asked, profiles, found, strict=True
    ):
        name, measured = f"{workload.model.name} {case[1:3]}", probed.measurement
        assert measured.memory is not None, (name, measured.detail)
        assert measured.attention == case[3], name
        seen = measured.memory.allocated_bytes
        exact, estimate = (
            predict(workload, cluster, stack, one, profile=known).allocated_bytes
            for known in (profile, None)
        )
        assert None not in (exact.value, estimate.low, estimate.high)
        if abs(exact.value / seen - 1) > 0.005 or not estimate.low <= seen <= estimate.high:
            wrong[name] = (
                f"dry run {exact.value / seen:.4f}, arithmetic {estimate.value / seen:.4f}"
            )
    assert not wrong


def _workload(config, precision):
    model = read_model_config(config, config["model_type"])
    return Workload(model=model, sequence_length=TOKENS, global_batch_size=2, precision=precision)


def _profile(workload, cluster, settings, runner):
    plan = plan_dry_runs(workload, cluster, framework("torch"), settings, dry_run_versions())
    (ran,) = runner.made([plan])
    assert ran.profile is not None, ran.error
    return ran.profile


def _spec(workload, cluster, settings):
    return {
        **rank_spec(workload, replace(settings, gradient_accumulation_steps=1), cluster),
        "memory_limit_bytes": None, "seed": 1, "accumulation_counts": [1], "warmup_steps": 2,
        "tracked_steps": 2, "measured_steps": 1, "minimum_steps": 1, "time_budget_s": 1.0,
    }  # fmt: skip
