"""Context parallelism beside torch's own code: the ring's buffers and calls, and what is trained
by the loop that is exported."""

import json
import sys
from pathlib import Path

import pytest

from tests.process.launchfiles.launching import launched
from tests.unit.launchfiles.cases import Case
from tuner.core.cluster import parse_cluster
from tuner.core.configuration import parse_settings
from tuner.core.workload import Loss, Precision, Workload
from tuner.cost.memory.attention import ring_buffers
from tuner.cost.memory.layers import LayerKey, _Layer
from tuner.cost.time.collectives import Op, step_collectives
from tuner.launchfiles.accelerate import script
from tuner.model import load_model

PROGRAM = [sys.executable, "-m", "tests.process.probe.ring_ranks"]
ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("ranks", [2, 8])
@pytest.mark.parametrize("keys", [8, 32])
def test_buffers_and_bytes_are_those_of_torch(ranks, keys):
    """On the rank that needs most; in forward that is the last, in backward any."""
    each = [
        json.loads(
            launched([*PROGRAM, str(ranks), str(rank), str(keys)], cwd=ROOT).splitlines()[-1]
        )
        for rank in (0, ranks - 1)
    ]
    model = load_model("llama-3.1-8b" if keys == 8 else "llama-2-7b")
    workload = Workload(
        model=model, sequence_length=256, global_batch_size=1, precision=Precision.BF16
    )
    settings = parse_settings(f"sharding=full_shard,cp_size={ranks}")
    cluster = parse_cluster("8xh100-80gb")
    key = LayerKey(
        model=model, sequence_length=256, compute_bytes=2, residual_bytes=2, tp=1,
        recompute=False, device=cluster.gpu.device, attention=None, ring=ranks,
    )  # fmt: skip
    layer = _Layer(key, sparse=False, sliding=False, starts=False)
    tokens = layer.tokens
    forward, backward = ring_buffers(tokens * layer.queries, tokens * layer.keys, layer.c, ranks)
    rows = 4 * 256 * 32  # of logarithms that some blocks keep, which are not counted
    assert max(one["forward"] for one in each) == pytest.approx(forward, abs=4 * rows)
    half = 2 * 256 * 128 * keys  # of one kernel's gradients of keys and values, in the last block
    off = backward - max(one["backward"] for one in each)
    assert -2 * rows <= off <= (half if ranks == 2 and keys == 32 else 2 * rows)
    ((op, gathered),) = each[0]["calls"]
    back = each[0]["back"]
    ours = [one for one in step_collectives(workload, settings, cluster) if one.axis == "cp"]
    assert op == "all_gather" == back[0][0]
    assert ours[0].bytes == model.layers * gathered
    assert ours[1].bytes == model.layers * back[0][1]
    assert ours[2].op is Op.PERMUTE
    assert ours[2].count == model.layers * (len(back) - 1) == model.layers * ranks
    assert ours[2].bytes == model.layers * sum(size for _, size in back[1:])


@pytest.mark.parametrize("changed", ["", "fused_loss=true", "loss"])
def test_the_exported_loop_trains_what_one_process_trains(tmp_path, changed):
    """Two ranks, with torch's ring and CPU's kernel: parts, shifted labels, positions, the mean."""
    question, settings = Case(
        model="llama-3.2-1b",
        cluster="2xl4",
        sequence_length=32,
        settings=f"sharding=full_shard,cp_size=2,{changed if '=' in changed else ''}",
        workload={"loss": Loss.FP32} if changed == "loss" else {},
    ).parts()
    code = script(question, settings)
    functions, loop = code.split("accelerator = Accelerator(")[0], code.split("\nfor batch in")[1]
    begin = functions.partition("AutoModelForCausalLM\n")[2]
    uses = {"": "", "loss": "model.loss_function = cross_entropy"}.get(changed, "fuse_loss(model)")
    assert uses in code
    (tmp_path / "loop.py").write_text(f"{begin}\n{uses}\nfor batch in{loop}\n", encoding="utf-8")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    out = launched([*torchrun, *PROGRAM[1:], str(tmp_path / "loop.py")], cwd=ROOT)
    told = json.loads(next(line for line in out.splitlines() if line.startswith('{"')))
    assert told["ring"] == pytest.approx(told["plain"], rel=1e-5)
    assert told["off"] < 1e-5
