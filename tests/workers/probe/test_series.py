"""Probes that share processes find what each would find in processes of its own."""

import importlib.util
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.process.preloaded import Preloaded
from workers.launchers.base import Ended, Job
from workers.launchers.local import LocalLauncher, probe_argv, series_argv
from workers.probe.orders import END, SPEC, SPENT

GPT2 = {
    "model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 128,
    "n_positions": 256,
}  # fmt: skip
MOE = {
    "model_type": "mixtral", "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128,
    "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4,
    "num_experts_per_tok": 2, "vocab_size": 128, "max_position_embeddings": 256,
}  # fmt: skip
EXACT = ("losses", "gradient_norms", "collectives", "optimizer_steps", "hardware", "versions")
"""Of a record: what no process that it is made in may change."""

Spec = Callable[..., dict[str, Any]]
Records = list[dict[str, Any]]


@pytest.fixture(scope="module")
def spec() -> Spec:
    """As ``test_program.py`` makes it."""
    path = Path(__file__).with_name("test_program.py")
    found = importlib.util.spec_from_file_location("program", path)
    assert found is not None
    assert found.loader is not None
    module: ModuleType = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    made: Spec = module.spec
    return made


def run(argv: Sequence[str], folder: Path, ranks: int) -> Ended:
    job = Job(
        argv=tuple(argv), directory=folder, ranks=ranks, device="cpu", deadline_s=900, sharing=2
    )
    launched = LocalLauncher().start(job)
    while (ended := launched.poll()) is None:
        time.sleep(0.05)
    return ended


def records(folder: Path, ranks: int) -> Records:
    return [json.loads((folder / f"rank-{rank:05d}.json").read_text()) for rank in range(ranks)]


def cold(start: Preloaded, folder: Path, spec: Mapping[str, Any], ranks: int) -> Records:
    folder.mkdir()
    (folder / SPEC).write_text(json.dumps(spec))
    run(start(probe_argv(folder)), folder, ranks)
    return records(folder, ranks)


COUNTS = """
import gc
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from workers.probe.__main__ import main
from workers.probe.series import Between
clean_up = Between.clean_up
def counted(*given):
    left = clean_up(*given)
    kinds = (DeviceMesh, ProcessGroup)
    print("left:", left, *(sum(isinstance(o, k) for o in gc.get_objects()) for k in kinds))
    return left
Between.clean_up = counted
main()
"""
LEFT = "left: 0 0 0"
"""Bytes, meshes, process groups."""


def warm(
    start: Preloaded, folder: Path, specs: list[dict[str, Any]], ranks: int
) -> tuple[Ended, list[Path]]:
    """All specs as orders that are there from the start; what is left after each is counted."""
    places = [folder / f"{number:04d}" for number in range(1, len(specs) + 1)]
    for place, spec in zip(places, specs, strict=True):
        place.mkdir(parents=True)
        (place / SPEC).write_text(json.dumps(spec))
    (folder / END).touch()
    return run(start(in_place_of_the_program(COUNTS, folder)), folder, ranks), places


def in_place_of_the_program(text: str, folder: Path) -> tuple[str, ...]:
    argv = series_argv(folder)
    return (*argv[:2], "-c", text, *argv[4:])


def memory(record: Mapping[str, Any]) -> dict[str, Any]:
    """What is counted of tensors; the process's own grows with what it has imported."""
    return {key: value for key, value in record["memory"].items() if key != "device_bytes"}


def assert_as_much(mine: dict[str, Any], other: dict[str, Any], *, exactly: bool) -> None:
    """The same memory.

    A rank alone takes the same to the byte. Real ranks wait for each other, and free gathered
    blocks at moments that differ from run to run: their peaks may differ by a layer's gathered
    weights, which are 4% of what these small models take. What a probe left behind is counted
    exactly, by :data:`COUNTS`.
    """
    if exactly:
        assert mine == other
        return
    assert mine.keys() == other.keys()
    peak = other["peak_allocated_bytes"]
    for name, value in other.items():
        assert mine[name] == pytest.approx(value, abs=0.05 * peak), name


def assert_alike(start: Preloaded, tmp_path: Path, specs: list[dict[str, Any]], ranks: int) -> None:
    """Run all in one series, and the last two by themselves too."""
    ended, places = warm(start, tmp_path / "warm", specs, ranks)
    assert [end.code for end in ended.ranks] == [0] * ranks, records(places[0], ranks)
    assert not (tmp_path / "warm" / SPENT).exists()
    for rank in range(ranks):
        said = (tmp_path / "warm" / f"rank-{rank:05d}.log").read_text().splitlines()
        assert [line for line in said if line.startswith("left:")] == [LEFT] * len(specs)
    for number in (-2, -1):
        alone = cold(start, tmp_path / f"cold{number}", specs[number], ranks)
        for mine, other in zip(records(places[number], ranks), alone, strict=True):
            assert mine["outcome"] == other["outcome"] == "ok", (mine["error"], other["error"])
            assert_as_much(memory(mine), memory(other), exactly=ranks == 1)
            assert {key: mine[key] for key in EXACT} == {key: other[key] for key in EXACT}


@pytest.mark.slow
def test_measured_probes_after_others(preloaded: Preloaded, tmp_path: Path, spec: Spec) -> None:
    """Meshes of one shape follow each other, dropout draws, weights are cast."""
    tensor_parallel = {"tp_size": 2, "tp_recompute_allgather": True}
    specs = [
        spec(2, tensor_parallel, global_batch_size=4),
        spec(2, {"sharding": "ddp"}, model=MOE, precision="bf16_mixed"),
        spec(2, {"sharding": "full_shard", "sync_each_batch": False}, model=GPT2),
        spec(2, tensor_parallel, global_batch_size=4, precision="bf16_mixed"),
        spec(2, {"sharding": "full_shard"}, model=GPT2),
    ]
    assert_alike(preloaded, tmp_path, specs, 2)


@pytest.mark.slow
def test_measured_probes_on_two_axes_after_others(
    preloaded: Preloaded, tmp_path: Path, spec: Spec
) -> None:
    both = {"sharding": "full_shard", "tp_size": 2, "tp_recompute_allgather": True}
    specs = [
        spec(4, both, global_batch_size=8),
        spec(4, {"sharding": "hybrid_shard"}, gpus_per_node=2),
        spec(4, {"sharding": "shard_grad_op"}, precision="bf16_mixed"),
        spec(4, {"sharding": "hybrid_shard", "sync_each_batch": False}, gpus_per_node=2),
        spec(4, both, global_batch_size=8),
    ]
    assert_alike(preloaded, tmp_path, specs, 4)


@pytest.mark.slow
def test_compiled_optimizers_after_others(preloaded: Preloaded, tmp_path: Path, spec: Spec) -> None:
    """The second finds nothing compiled, and compiles for its own shapes."""
    models = [{**GPT2, "n_embd": width} for width in (64, 96)]
    specs = [spec(1, model=model, optimizer="adamw_8bit") for model in models]
    assert_alike(preloaded, tmp_path, specs, 1)


def test_emulated_probes_after_others(preloaded: Preloaded, tmp_path: Path, spec: Spec) -> None:
    alone = {"fidelity": "emulated", "accumulation_counts": [2, 4], "gpus_per_node": 4}
    knobs = {"gradient_accumulation_steps": 8}
    sharded = {"sharding": "full_shard", "tp_size": 2, "tp_recompute_allgather": True, **knobs}
    specs = [
        spec(16, {"sharding": "hybrid_shard", **knobs}, **alone),
        spec(16, sharded, **{**alone, "global_batch_size": 128}),
        spec(16, {"sharding": "ddp", **knobs}, **alone),
        spec(16, sharded, **{**alone, "global_batch_size": 128}),
    ]
    assert_alike(preloaded, tmp_path, specs, 1)


LEAKS = """
import workers.probe.run as run
from workers.probe.__main__ import main
kept, build = [], run.build_stack
run.build_stack = lambda *given: kept.append(build(*given)) or kept[-1]
main()
"""


def test_a_process_with_memory_left_behind_waits_for_nothing(
    preloaded: Preloaded, tmp_path: Path, spec: Spec
) -> None:
    """No end is ordered: it goes by itself."""
    place = tmp_path / "0001"
    place.mkdir()
    (place / SPEC).write_text(json.dumps(spec(1, model={**GPT2, "vocab_size": 40_000})))
    ended = run(preloaded(in_place_of_the_program(LEAKS, tmp_path)), tmp_path, 1)
    assert [end.code for end in ended.ranks] == [0]
    assert records(place, 1)[0]["outcome"] == "ok"
    assert (tmp_path / SPENT).exists()


def test_nothing_follows_a_probe_that_failed(tmp_path: Path, spec: Spec) -> None:
    specs = [spec(1), spec(1, memory_limit_bytes=1_000_000), spec(1)]
    ended, places = warm(tuple, tmp_path / "warm", specs, 1)
    assert [end.code for end in ended.ranks] == [10]
    assert records(places[0], 1)[0]["outcome"] == "ok"
    assert records(places[1], 1)[0]["outcome"] == "oom"
    assert records(tmp_path / "warm", 1)[0]["outcome"] == "oom"
    assert not list(places[2].glob("rank-*.json"))
