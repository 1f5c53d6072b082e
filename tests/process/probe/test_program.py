"""The program as its supervisor starts it: ranks of one probe, and of several after each other.

Probes that share processes find what each would find in processes of its own, as the last two of a
series show. So the records of two series are what most is asked of here.
"""

import json
import sys
import time
from typing import Any

import pytest

from tests.models import TINY
from tests.process.probe.specs import ENVIRONMENT, MODELS
from tests.process.probe.specs import spec as spec_of
from workers.launchers.base import Job
from workers.launchers.local import LocalLauncher, series_argv
from workers.probe.orders import END, SPEC, SPENT

Record = dict[str, Any]

PHASES = {"forward", "backward", "optimizer"}
GPT2 = MODELS["gpt2"]
MOE = {**MODELS["mixtral"], "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
SPLIT = {"tp_size": 2, "tp_recompute_allgather": True}
# Of a record: what no process that it is made in may change.
EXACT = ("losses", "gradient_norms", "collectives", "optimizer_steps", "hardware", "versions")
LIMIT = 1_000_000
NOT_FINITE = {**TINY, "rms_norm_eps": -1.0}


def spec(ranks=1, model=TINY, **choices):
    return spec_of(dict(model), ranks, **choices)


def run(argv, folder, ranks):
    job = Job(
        argv=tuple(argv), directory=folder, ranks=ranks, device="cpu", deadline_s=900, sharing=2
    )
    launched = LocalLauncher().start(job)
    while (ended := launched.poll()) is None:
        time.sleep(0.05)
    return ended


def codes(ended):
    return [end.code for end in ended.ranks]


def records(folder, ranks):
    return [json.loads((folder / f"rank-{rank:05d}.json").read_text()) for rank in range(ranks)]


def order(folder, values):
    folder.mkdir(parents=True)
    (folder / SPEC).write_text(json.dumps(values))
    return folder


def cold(start, folder, values, ranks):
    """Records of ranks of one probe, who end well."""
    order(folder / "0001", values)
    (folder / END).touch()
    ended = run(start(series_argv(folder)), folder, ranks)
    found = records(folder, ranks)
    assert codes(ended) == [0] * ranks, found[0]["error"]
    return found


# Bytes, meshes and process groups that are left after each probe of a series.
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


def in_place_of_the_program(text, folder):
    argv = series_argv(folder)
    return (*argv[:2], "-c", text, *argv[4:])


def warm(start, folder, specs, ranks):
    """Records by name of orders that are there from the start; nothing is left after any."""
    places = {name: order(folder / f"{number:04d}", values)
              for number, (name, values) in enumerate(specs.items(), 1)}  # fmt: skip
    (folder / END).touch()
    ended = run(start(in_place_of_the_program(COUNTS, folder)), folder, ranks)
    assert codes(ended) == [0] * ranks, (folder / "rank-00000.log").read_text()[-2000:]
    assert not (folder / SPENT).exists()
    for rank in range(ranks):
        said = (folder / f"rank-{rank:05d}.log").read_text().splitlines()
        left = [line for line in said if line.startswith("left:")]
        assert left == ["left: 0 0 0"] * len(specs)
    return {name: records(place, ranks) for name, place in places.items()}


def hold_alike(start, folder, specs, found, ranks):
    """The last two of a series are as by themselves.

    A rank alone takes the same memory to the byte. Real ranks wait for each other, and free
    gathered blocks at moments that differ from run to run: their peaks may differ by a layer's
    gathered weights, which are 4% of what these small models take. What a probe left behind is
    counted exactly.
    """
    for name in list(specs)[-2:]:
        alone = cold(start, folder / name.replace(" ", "-"), specs[name], ranks)
        for mine, other in zip(found[name], alone, strict=True):
            assert {key: mine[key] for key in EXACT} == {key: other[key] for key in EXACT}
            for key, value in other["memory"].items():
                if key == "device_bytes":  # the process's own grows with what it has imported
                    continue
                peak = 0 if ranks == 1 else other["memory"]["allocated_bytes"]
                near = value if ranks == 1 else pytest.approx(value, abs=0.05 * peak)
                assert mine["memory"][key] == near, (name, key)


LONG = {
    "gradient_accumulation_steps": 64, "sharding": "full_shard", "accumulation_counts": [2, 4],
}  # fmt: skip
MEASURED = {
    "split": spec(2, **SPLIT),
    "slow": spec(2, **LONG, give_up_above_s=1e-6),
    "quick": spec(2, **LONG, give_up_above_s=1e6),
    "experts": spec(2, MOE, precision="bf16_mixed"),
    "split mixed": spec(2, **SPLIT, precision="bf16_mixed"),
    "dropout": spec(2, GPT2, sharding="full_shard", sync_each_batch=False),
}
ALONE = {
    "fidelity": "emulated", "accumulation_counts": [2, 4], "gradient_accumulation_steps": 8,
    "gpus_per_node": 4,
}  # fmt: skip
EMULATED = {
    "hybrid": spec(16, sharding="hybrid_shard", sync_each_batch=False, **ALONE),
    "slow": spec(16, sharding="full_shard", give_up_above_s=1e-6, **ALONE),
    "not finite": spec(16, NOT_FINITE, sharding="full_shard", **ALONE),
    "ddp": spec(16, **ALONE),
    "split": spec(16, sharding="full_shard", **SPLIT, **ALONE),
}


@pytest.fixture(scope="module")
def measured(preloaded, tmp_path_factory):
    return warm(preloaded, tmp_path_factory.mktemp("measured") / "warm", MEASURED, 2)


@pytest.fixture(scope="module")
def emulated(preloaded, tmp_path_factory):
    """Sixteen ranks on four nodes, played by one process."""
    folder = tmp_path_factory.mktemp("emulated") / "warm"
    return {name: one for name, (one,) in warm(preloaded, folder, EMULATED, 1).items()}


@pytest.mark.smoke
def test_a_probe_measures_memory_time_and_training(tmp_path, monkeypatch):
    """In processes that import all for themselves."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    first, _ = cold(tuple, tmp_path / "probe", spec(2, sharding="full_shard"), 2)
    assert first["outcome"] == "ok"
    assert first["optimizer_steps"] == first["expected_optimizer_steps"] == 7
    assert len(first["losses"]) == 7
    assert len(first["gradient_norms"]) == 2
    times = first["step_times_s"]["2"]
    assert len(times) == 4
    assert min(times) > 0
    memory = first["memory"]
    assert set(memory["by_phase"]) >= PHASES
    assert memory["allocated_bytes"] == max(memory["by_phase"][phase] for phase in PHASES)
    assert sum(memory["by_category"].values()) == memory["allocated_bytes"]
    # 82,240 parameters of 4 bytes over two ranks, and adamw's two moments beside them
    assert memory["by_category"]["parameters"] == pytest.approx(82_240 * 4 / 2, rel=0.05)
    assert 1.9 < memory["by_category"]["optimizer"] / memory["by_category"]["parameters"] < 2.1
    assert {c["op"] for c in first["collectives"]} == {"all_gather", "reduce_scatter"}
    assert first["versions"]["torch"]
    assert first["hardware"]["device"] == "cpu"
    assert not list((tmp_path / "probe").rglob("*.partial"))


def test_measured_probes_after_others(measured, preloaded, tmp_path):
    """Meshes of one shape follow each other, dropout draws, weights are cast."""
    hold_alike(preloaded, tmp_path, MEASURED, measured, 2)


@pytest.mark.long
def test_emulated_probes_after_others(emulated, preloaded, tmp_path):
    found = {name: [record] for name, record in emulated.items()}
    hold_alike(preloaded, tmp_path, EMULATED, found, 1)


def test_slow_steps_are_not_timed_further(measured, emulated):
    """All ranks agree, and what was seen until then is kept."""
    for asked, outcome, steps in (
        ([*measured["slow"], emulated["slow"]], "stopped_early", 2),
        ([*measured["quick"], emulated["hybrid"]], "ok", 4),
    ):
        for record in asked:
            assert (record["outcome"], record["error"]) == (outcome, None)
            lengths = {count: len(times) for count, times in record["step_times_s"].items()}
            assert lengths == {"2": steps, "4": steps}
            assert record["memory"]["allocated_bytes"] > 0
            assert record["tracked_accumulation"] == 4
            assert record["optimizer_steps"] == record["expected_optimizer_steps"]
    found = emulated["slow"]["emulation"]
    assert {n: len(times) for n, times in found["phase_times_s"].items()} == {"2": 2, "4": 2}
    assert found["copies_s"].keys() == found["collectives"].keys() == {"2", "4"}


def test_a_rank_alone_has_computing_and_collectives_apart(emulated):
    record = emulated["hybrid"]
    found = record["emulation"]
    assert record["losses"] == record["gradient_norms"] == []
    assert record["memory"]["allocation_retries"] == 0
    for count in ("2", "4"):
        steps = found["phase_times_s"][count]
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
    # its loss is of other weights than anybody's: it may be anything, or nothing
    assert emulated["not finite"]["outcome"] == "ok"


# Probes that end otherwise, one after another: what a series does not go on after. Rank 0 alone
# comes last, since it changes torch.distributed for good.
ENDS = """
import sys
from pathlib import Path
import torch.distributed as dist
from accelerate.state import AcceleratorState, GradientState
from workers.probe.run import run_probe
for spec in sorted(Path(sys.argv[1]).glob("*/spec.json")):
    run_probe(spec, f"file://{spec.parent}/rendezvous")[0].write(spec.parent)
    if dist.is_initialized():
        dist.destroy_process_group()
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
"""
OTHERWISE = [
    ("invalid", spec(model={**TINY, "num_attention_heads": 5})),
    ("non_finite", spec(model=NOT_FINITE)),
    ("crashed", spec(device="tpu")),
    ("oom", spec(memory_limit_bytes=LIMIT)),
    ("oom", spec(2, memory_limit_bytes=LIMIT, **{**ALONE, "gpus_per_node": 2})),
    ("invalid", spec(2, GPT2, tp_size=2, fidelity="emulated")),
]


def test_other_ends_are_recorded(preloaded, tmp_path):
    places = [order(tmp_path / f"{n:04d}", values) for n, (_, values) in enumerate(OTHERWISE)]
    ended = run(preloaded((sys.executable, "-P", "-c", ENDS, str(tmp_path))), tmp_path, 1)
    assert codes(ended) == [0], (tmp_path / "rank-00000.log").read_text()[-2000:]
    for (outcome, _), place in zip(OTHERWISE, places, strict=True):
        (record,) = records(place, 1)
        assert record["outcome"] == outcome, record["error"]
        assert record["error"]["type"]
        assert record["error"]["traceback"]
        if outcome == "oom":
            shortage = record["oom"]
            assert shortage["phase"] in PHASES
            assert shortage["allocated_bytes"] <= LIMIT == shortage["limit_bytes"]
            assert shortage["allocated_bytes"] + shortage["requested_bytes"] > LIMIT
    assert "gpt2" in records(places[-1], 1)[0]["error"]["message"]


def test_nothing_follows_a_probe_that_failed(preloaded, tmp_path):
    specs = [spec(), spec(memory_limit_bytes=LIMIT), spec()]
    places = [order(tmp_path / f"{n:04d}", values) for n, values in enumerate(specs, 1)]
    (tmp_path / END).touch()
    assert codes(run(preloaded(series_argv(tmp_path)), tmp_path, 1)) == [10]
    assert records(places[0], 1)[0]["outcome"] == "ok"
    assert records(places[1], 1)[0]["outcome"] == "oom"
    assert records(tmp_path, 1)[0]["outcome"] == "oom"
    assert not list(places[2].glob("rank-*.json"))


LEAKS = """
import workers.probe.run as run
from workers.probe.__main__ import main
kept, build = [], run.build_stack
run.build_stack = lambda *given: kept.append(build(*given)) or kept[-1]
main()
"""


def test_a_process_with_memory_left_behind_waits_for_nothing(preloaded, tmp_path):
    """No end is ordered: it goes by itself."""
    place = order(tmp_path / "0001", spec(model={**GPT2, "vocab_size": 40_000}))
    ended = run(preloaded(in_place_of_the_program(LEAKS, tmp_path)), tmp_path, 1)
    assert codes(ended) == [0]
    assert records(place, 1)[0]["outcome"] == "ok"
    assert (tmp_path / SPENT).exists()


@pytest.mark.long
@pytest.mark.parametrize("sharding", ["ddp", "full_shard"])
def test_the_8_bit_optimizer_halves_the_state_or_better(preloaded, tmp_path, sharding):
    pytest.importorskip("torchao", reason="adamw_8bit needs torchao")
    values = spec(2, sharding=sharding, optimizer="adamw_8bit")
    by_category = cold(preloaded, tmp_path / "probe", values, 2)[0]["memory"]["by_category"]
    assert by_category["optimizer"] < 1.1 * by_category["parameters"]
