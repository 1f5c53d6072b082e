"""The module for torch's own loop: its code, and that it trains what one process trains."""

import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process.launchfiles.launching import all_json, launched, save_tiny_llama
from tests.unit.launchfiles.cases import ABOUT, Case
from tuner.core.packing import Packing
from tuner.core.workload import Loss, Optimizer, Precision, ReduceDtype
from tuner.launchfiles import export, why_not
from tuner.launchfiles.accelerate import script
from tuner.launchfiles.torch_module import module

HERE = Path(__file__).parent


def test_the_code_has_no_unknown_or_unused_names(tmp_path):
    """That of modules for torch's own loop, and that in files for accelerate."""
    makers = {"torch": module, "accelerate": script}
    kinds = ("ddp", "full_shard", "hybrid_shard,cpu_offload=true", "full_shard,tp_size=2",
             "full_shard,fused_loss=true")  # fmt: skip
    every = itertools.product(
        makers.items(), ("cpu:2", "2x2xl4", "l4"), kinds, ("true", "false"), ("none", "full"),
        Precision,
    )  # fmt: skip
    for number, ((name, make), cluster, kind, sync, full, precision) in enumerate(every):
        if "tp_size" not in kind and number % 2:
            full = "selective" if full == "none" else "every_2"
        question, settings = Case(
            model="stories15m",
            cluster=cluster if "tp_size" not in kind else "2x2xl4",
            sequence_length=8,
            settings=f"sharding={kind},sync_each_batch={sync},gradient_accumulation_steps=2"
            f",activation_checkpointing={full}",
            workload={
                "precision": precision,
                "reduce_dtype": list(ReduceDtype)[number % 2],
                "optimizer": list(Optimizer)[number % len(Optimizer)],
                "loss": list(Loss)[number % len(Loss)],
            },
        ).parts()
        if why_not(name, question, settings) is None:
            code = make(question, settings)
            (tmp_path / f"{name}{number}.py").write_text(f"{code}\n", encoding="utf-8")
    for name in makers:
        assert len(list(tmp_path.glob(f"{name}*.py"))) > 30, name
    own = 'builtins = ["MODEL", "DATASET", "LEARNING_RATE"]'
    check = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--preview"]
    checked = subprocess.run(
        [*check, "--config", own, "--select=F,E302,E303,E305,E9,W", str(tmp_path)],
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stdout


def test_what_it_takes_of_the_probe_program_is_there():
    """Exported modules outlive versions of this program: these names and arguments are kept."""
    import inspect

    from workers.probe import tensor_parallel

    parts = Case(model="llama-3.2-1b", cluster="2xl4", settings="sharding=ddp,tp_size=2").parts()
    assert 'parallelize(model, mesh["tp"], recompute_allgather=' in module(*parts)
    assert "reduce_partial_gradients(model.parameters())" in module(*parts)
    arguments = inspect.signature(tensor_parallel.parallelize).parameters
    assert list(arguments)[:3] == ["model", "mesh", "recompute_allgather"]
    later = {name: one.default for name, one in list(arguments.items())[3:]}
    assert later == {"style": "sequence_parallel", "widens": True}
    assert list(inspect.signature(tensor_parallel.reduce_partial_gradients).parameters) == [
        "parameters"
    ]


def test_selective_checkpointing_keeps_what_the_probe_keeps():
    from workers.probe.checkpointing import ATTENTION, PRODUCTS
    from workers.probe.checkpointing import VARLEN_FORWARD as VARLEN

    parts = Case(settings="sharding=ddp,activation_checkpointing=selective").parts()
    for code in (module(*parts), script(*parts)):
        named = [line.strip(" ,") for line in code.splitlines() if "torch.ops.aten." in line]
        assert named == [f"torch.ops.{operator}" for operator in (*PRODUCTS, *ATTENTION)]
    packed = {"packing": Packing()}
    case = Case(settings="sharding=ddp,activation_checkpointing=selective", workload=packed)
    (own,) = [line.strip(" ,") for line in script(*case.parts()).splitlines() if VARLEN in line]
    assert own == f"torch.ops.flash_attn.{VARLEN}.default"


# ---- launched: the package's other tests see the calls, these that they train the same ---------

ALONE = ("cpu:1", "sharding=ddp,micro_batch_size=8")
DEFERRED = "micro_batch_size=2,gradient_accumulation_steps=2,sync_each_batch=false"
EACH = "micro_batch_size=2,gradient_accumulation_steps=2,sync_each_batch=true"


def _trained(folder, *kinds, **workload):
    """What was seen of each of some settings, on clusters of one size."""
    paths = []
    for number, (cluster, settings) in enumerate(kinds):
        question, chosen = Case(
            model="stories15m",
            cluster=cluster,
            sequence_length=8,
            settings=settings,
            workload={"precision": Precision.FP32, **workload},
        ).parts()
        paths.append(folder / f"tuned{question.cluster.world_size}_{number}.py")
        paths[-1].write_text(export("torch", question, chosen, ABOUT), encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    command += [str(question.cluster.world_size), str(HERE / "trained.py"), str(folder / "model")]
    return all_json(launched([*command, *map(str, paths)]))


@pytest.mark.usefixtures("preloading")
@pytest.mark.slow
def test_two_processes_train_what_one_trains(tmp_path):
    """Two optimizer steps of two micro-batches; sharded in 2 layers, the embedding and the rest."""
    save_tiny_llama(tmp_path / "model", tied=False, std=0.2)
    (alone,) = _trained(tmp_path, ALONE)
    assert len(alone["losses"]) == 2
    assert abs(alone["losses"][0] - alone["losses"][1]) > 1e-2
    found = _trained(
        tmp_path,
        ("cpu:2", f"sharding=full_shard,{DEFERRED}"),
        ("cpu:2", f"sharding=shard_grad_op,{EACH},activation_checkpointing=full"),
        ("cpu:2", f"sharding=ddp,{DEFERRED}"),
        ("cpu:2", f"sharding=full_shard,{EACH},fused_loss=true"),
        ("cpu:2", f"sharding=full_shard,{EACH},activation_checkpointing=selective"),
        ("cpu:2", f"sharding=ddp,{DEFERRED},activation_checkpointing=every_2"),
        loss=Loss.OWN_DTYPE,  # in fp32 the same as transformers' own
    )
    assert len(found) == 6
    for both in found:
        assert both["losses"] == pytest.approx(alone["losses"], rel=1e-5)
    counts = [both["collectives"] for both in found]
    assert counts[0]["reduce_scatter_base torch.float32"] == 2 * 4
    assert counts[1]["reduce_scatter_base torch.float32"] == 2 * 2 * 4
    assert counts[2] == counts[5] == {"allreduce torch.float32": 2}
    for each in counts[3:5]:
        assert each["reduce_scatter_base torch.float32"] == 2 * 2 * 4


@pytest.mark.usefixtures("preloading")
@pytest.mark.long
def test_tensor_parallelism_trains_what_one_process_trains(tmp_path):
    save_tiny_llama(tmp_path / "model", tied=True, std=0.2)
    (alone,) = _trained(tmp_path, ALONE)
    full = "activation_checkpointing=full,tp_recompute_allgather=true"
    found = _trained(tmp_path, ("cpu:2", f"sharding=ddp,tp_size=2,micro_batch_size=8,{full}"))
    found += _trained(
        tmp_path,
        ("cpu:4", f"sharding=full_shard,tp_size=2,{DEFERRED}"),
        ("2x2xcpu", "sharding=hybrid_shard,gradient_accumulation_steps=2,cpu_offload=true"),
    )
    assert len(found) == 3
    for one in found:
        assert one["losses"] == pytest.approx(alone["losses"], rel=1e-5)


@pytest.mark.usefixtures("preloading")
@pytest.mark.long
def test_replicas_of_shards_reduce_when_they_are_told_to(tmp_path):
    """Two steps of two micro-batches in four units: on each of them, or on the last alone."""
    save_tiny_llama(tmp_path / "model", tied=False, std=0.2)
    (alone,) = _trained(tmp_path, ALONE)
    hybrid = "sharding=hybrid_shard,micro_batch_size=1,gradient_accumulation_steps=2"
    kinds = [("2x2xcpu", f"{hybrid},defer_all_reduce={defers}") for defers in ("false", "true")]
    found = _trained(tmp_path, *kinds)
    assert len(found) == 2
    for one, all_reduces in zip(found, (2 * 2 * 4, 2 * 4), strict=True):
        assert one["losses"] == pytest.approx(alone["losses"], rel=1e-5)
        assert one["collectives"]["reduce_scatter_base torch.float32"] == 2 * 2 * 4
        assert one["collectives"]["allreduce torch.float32"] == all_reduces


@pytest.mark.usefixtures("preloading")
@pytest.mark.long
def test_gradients_are_reduced_in_the_format_that_was_asked_for(tmp_path):
    save_tiny_llama(tmp_path / "model", tied=False)
    kinds = [("cpu:2", f"sharding={sharding},{DEFERRED}") for sharding in ("ddp", "full_shard")]
    found = _trained(tmp_path, *kinds, reduce_dtype=ReduceDtype.BF16)
    replicated, sharded = (one["collectives"] for one in found)
    assert replicated["allreduce torch.bfloat16"] == 2
    assert sharded["reduce_scatter_base torch.bfloat16"] == 2 * 4
