"""The program as the supervisor starts it: real ranks, one record each."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from tests.models import TINY
from tests.process.preloaded import Preloaded

Run = Callable[[Path, dict], tuple[list[int], list[dict]]]

PHASES = {"forward", "backward", "optimizer"}


def spec(ranks: int = 1, knobs: dict | None = None, **changes: object) -> dict:
    settings = {
        "sharding": "ddp", "tp_size": 1, "tp_recompute_allgather": False, "pp_size": 1,
        "micro_batch_size": 2, "gradient_accumulation_steps": 2, "sync_each_batch": True,
        "activation_checkpointing": "none", "cpu_offload": False, **(knobs or {}),
    }  # fmt: skip
    return {
        "format": 1, "model": TINY, "settings": settings, "sequence_length": 32,
        "global_batch_size": 4 * ranks, "optimizer": "adamw", "precision": "fp32",
        "reduce_dtype": "fp32", "world_size": ranks, "gpus_per_node": ranks, "device": "cpu",
        "memory_limit_bytes": None, "seed": 3, "accumulation_counts": [2], "warmup_steps": 3,
        "tracked_steps": 2, "measured_steps": 4, "minimum_steps": 3,
        "time_budget_s": 1e4,  # the same number of steps at any load
        **changes,
    }  # fmt: skip


def run_as(
    start: Callable[[Sequence[str]], Sequence[str]], folder: Path, values: dict
) -> tuple[list[int], list[dict]]:
    """Exit codes and records of all ranks, each of them started as ``start`` says."""
    (folder / "spec.json").write_text(json.dumps(values))
    command = start([
        sys.executable, "-P", "-m", "workers.probe", "--spec", str(folder / "spec.json"),
        "--out", str(folder), "--init-method", f"file://{folder}/rendezvous",
    ])  # fmt: skip
    ranks = range(1 if values.get("fidelity") == "emulated" else values["world_size"])
    environment = {
        **os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "HF_HUB_OFFLINE": "1",
        "WORLD_SIZE": str(len(ranks)),
    }  # fmt: skip
    processes = []
    for rank in ranks:
        with (folder / f"{rank}.log").open("w") as log:
            mine = {**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            processes.append(subprocess.Popen(command, env=mine, stdout=log, stderr=log))
    codes = [process.wait(timeout=600) for process in processes]
    return codes, [json.loads((folder / f"rank-{r:05d}.json").read_text()) for r in ranks]


@pytest.fixture
def run(preloaded: Preloaded) -> Run:
    """Exit codes and records of all ranks, which are forks that have their imports."""
    return partial(run_as, preloaded)


def test_a_probe_measures_memory_time_and_training(tmp_path: Path) -> None:
    codes, records = run_as(list, tmp_path, spec(2, {"sharding": "full_shard"}))
    assert codes == [0, 0]
    first = records[0]
    assert first["outcome"] == "ok"
    assert first["optimizer_steps"] == first["expected_optimizer_steps"] == 7
    assert len(first["losses"]) == 7
    assert len(first["gradient_norms"]) == 2
    times = first["step_times_s"]["2"]
    assert len(times) == 4
    assert min(times) > 0
    memory = first["memory"]
    assert set(memory["by_phase"]) >= PHASES
    assert memory["peak_allocated_bytes"] == max(memory["by_phase"][phase] for phase in PHASES)
    assert sum(memory["by_category"].values()) == memory["peak_allocated_bytes"]
    # 41,024 parameters of 4 bytes over two ranks, and adamw's two moments beside them
    assert 1.9 < memory["by_category"]["optimizer"] / memory["by_category"]["parameters"] < 2.1
    assert {c["op"] for c in first["collectives"]} == {"all_gather", "reduce_scatter"}
    assert first["versions"]["torch"]
    assert first["hardware"]["device"] == "cpu"
    assert not list(tmp_path.glob("*.partial"))


def test_a_long_accumulation_is_timed_at_two_counts(run: Run, tmp_path: Path) -> None:
    values = spec(
        1, {"gradient_accumulation_steps": 64}, global_batch_size=128, accumulation_counts=[2, 4]
    )
    codes, records = run(tmp_path, values)
    assert codes == [0]
    assert set(records[0]["step_times_s"]) == {"2", "4"}
    assert records[0]["tracked_accumulation"] == 4


LONG = {"gradient_accumulation_steps": 64, "sharding": "full_shard"}


@pytest.mark.parametrize(
    ("limit_s", "outcome", "steps"), [(1e-6, "stopped_early", 2), (1e6, "ok", 4)]
)
@pytest.mark.parametrize("fidelity", ["measured", "emulated"])
def test_slow_steps_are_not_timed_further(
    run: Run, tmp_path: Path, fidelity: str, limit_s: float, outcome: str, steps: int
) -> None:
    """All ranks agree, and what was seen until then is kept."""
    changes = {
        "accumulation_counts": [2, 4],
        "give_up_above_s": limit_s,
        "fidelity": fidelity,
    }
    codes, records = run(tmp_path, spec(2, LONG, global_batch_size=256, **changes))
    assert set(codes) == {0}, records[0]["error"]
    for record in records:
        assert (record["outcome"], record["error"]) == (outcome, None)
        assert {n: len(times) for n, times in record["step_times_s"].items()} == {
            "2": steps,
            "4": steps,
        }
        assert record["memory"]["peak_allocated_bytes"] > 0
        assert record["tracked_accumulation"] == 4
        assert record["optimizer_steps"] == record["expected_optimizer_steps"]
    if fidelity == "emulated":
        found = records[0]["emulation"]
        assert {n: len(times) for n, times in found["phase_times_s"].items()} == {
            "2": steps,
            "4": steps,
        }
        assert found["copies_s"].keys() == found["collectives"].keys() == {"2", "4"}


def test_out_of_memory_says_where_and_how_much(run: Run, tmp_path: Path) -> None:
    limit = 1_000_000
    codes, records = run(tmp_path, spec(memory_limit_bytes=limit))
    assert codes == [10]
    assert records[0]["outcome"] == "oom"
    shortage = records[0]["oom"]
    assert shortage["phase"] in PHASES
    assert shortage["limit_bytes"] == limit
    assert shortage["allocated_bytes"] <= limit
    assert shortage["allocated_bytes"] + shortage["requested_bytes"] > limit


EMULATED = {"fidelity": "emulated", "accumulation_counts": [2, 4]}


def test_a_rank_alone_has_computing_and_collectives_apart(run: Run, tmp_path: Path) -> None:
    """Sixteen ranks on four nodes, played by one process."""
    knobs = {"sharding": "hybrid_shard", "gradient_accumulation_steps": 8, "sync_each_batch": False}
    codes, (record,) = run(tmp_path, spec(16, knobs, gpus_per_node=4, **EMULATED))
    assert codes == [0], record["error"]
    found = record["emulation"]
    assert record["tracked_accumulation"] == 4
    assert record["losses"] == record["gradient_norms"] == []
    assert record["optimizer_steps"] == record["expected_optimizer_steps"]
    assert record["memory"]["allocation_retries"] == 0
    for count in ("2", "4"):
        steps = found["phase_times_s"][count]
        assert len(steps) == len(record["step_times_s"][count]) == 4
        assert all(set(step) == PHASES for step in steps)
        assert sum(steps[0].values()) == pytest.approx(record["step_times_s"][count][0])
        copies = found["copies_s"][count]
        assert set(copies) == {"forward", "backward"}
        assert copies["forward"] > 0
    # gathers grow with the micro-batches, reductions of the last one do not
    calls = {
        count: {
            op: sum(row["count"] for row in rows if row["op"] == op)
            for op in ("all_gather", "reduce_scatter", "all_reduce")
        }
        for count, rows in found["collectives"].items()
    }
    assert calls["4"]["all_gather"] == 2 * calls["2"]["all_gather"]
    assert calls["4"]["reduce_scatter"] == calls["2"]["reduce_scatter"] > 0
    assert calls["4"]["all_reduce"] == calls["2"]["all_reduce"] > 0
    assert record["collectives"] == found["collectives"]["4"]


def test_what_a_rank_alone_receives_is_not_judged(run: Run, tmp_path: Path) -> None:
    """Its loss is of other weights than anybody's: it may be anything, or nothing."""
    values = spec(2, {"sharding": "full_shard"}, model={**TINY, "rms_norm_eps": -1.0}, **EMULATED)
    codes, (record,) = run(tmp_path, values)
    assert (codes, record["outcome"]) == ([0], "ok")


def test_a_rank_alone_runs_out_of_memory_where_ranks_would(run: Run, tmp_path: Path) -> None:
    limit = 1_000_000
    codes, (record,) = run(tmp_path, spec(2, memory_limit_bytes=limit, **EMULATED))
    assert (codes, record["outcome"]) == ([10], "oom")
    shortage = record["oom"]
    assert shortage["phase"] in PHASES
    assert shortage["allocated_bytes"] <= limit == shortage["limit_bytes"]
    assert shortage["allocated_bytes"] + shortage["requested_bytes"] > limit


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({"model": {**TINY, "num_attention_heads": 5}}, "invalid"),
        ({"model": {**TINY, "rms_norm_eps": -1.0}}, "non_finite"),
        ({"device": "tpu"}, "crashed"),
    ],
)
def test_other_ends_are_recorded(run: Run, tmp_path: Path, changes: dict, outcome: str) -> None:
    codes, records = run(tmp_path, spec(**changes))
    assert codes == [10]
    assert records[0]["outcome"] == outcome
    assert records[0]["error"]["type"]
    assert records[0]["error"]["traceback"]


def test_tensor_parallelism_without_a_plan_is_refused(run: Run, tmp_path: Path) -> None:
    model = {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 64,
             "n_positions": 64}  # fmt: skip
    codes, records = run(tmp_path, spec(2, {"tp_size": 2}, model=model))
    assert codes == [10, 10]
    assert [r["outcome"] for r in records] == ["invalid", "invalid"]
    assert "gpt2" in records[0]["error"]["message"]


@pytest.mark.slow
@pytest.mark.parametrize("sharding", ["ddp", "full_shard"])
def test_the_8_bit_optimizer_halves_the_state_or_better(
    run: Run, tmp_path: Path, sharding: str
) -> None:
    pytest.importorskip("torchao", reason="adamw_8bit needs torchao")
    values = spec(2, {"sharding": sharding}, optimizer="adamw_8bit")
    codes, records = run(tmp_path, values)
    assert codes == [0, 0], records[0]["error"]
    by_category = records[0]["memory"]["by_category"]
    assert by_category["optimizer"] < 1.1 * by_category["parameters"]
