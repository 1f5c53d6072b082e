"""The commands as their users run them on a machine with GPUs, to the answer.

Kernels take no time here, so no speed is looked at.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cuda.probing import LLAMA
from tuner.core.cluster import parse_cluster
from tuner.core.measurement import RAN, Measurement
from tuner.store import open_store

ROOT = Path(__file__).resolve().parents[2]
TUNER = (sys.executable, "-P", "-c", "import sys; from tuner.cli import main; sys.exit(main())")
LONGEST_S = 1800.0
"""For anything here: a machine may be busy."""
MIB = 2**20
KNOBS = (
    "--knob", "sharding=ddp,full_shard", "--knob", "tp_size=1", "--knob", "micro_batch_size=2,4",
    "--knob", "sync_each_batch=true", "--knob", "activation_checkpointing=none",
)  # fmt: skip
THREE = ("--max-probes", "3", "--tolerance", "0")
"""Probes, whatever the times are, which mean nothing here."""


def run(*argv):
    """The JSON that a command prints; it must end well."""
    done = subprocess.run(argv, capture_output=True, text=True, timeout=LONGEST_S)
    assert done.returncode == 0, done.stderr + done.stdout
    return json.loads(done.stdout)


@pytest.fixture
def model(tmp_path):
    """A config.json of two layers."""
    path = tmp_path / "tiny" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps({**LLAMA, "num_hidden_layers": 2}))
    return str(path)


def question(model, cluster, batch, fidelity):
    """Options that say what is asked."""
    return ("--model", model, "--cluster", cluster, "--global-batch-size", str(batch),
            "--sequence-length", "256", "--fidelity", fidelity, "--json")  # fmt: skip


def database(folder, name):
    return f"sqlite:///{folder / name}.db"


def probes_of(url, study_id):
    """Probes in the order in which they ran, with what they measured; all did run."""
    with open_store(url) as store:
        probes = store.study(study_id).probes
    found = [(probe, probe.measurement) for probe in probes if probe.measurement]
    assert len(found) == len(probes)
    assert not [m.detail for _, m in found if m.outcome not in RAN]
    return found


def cold(asked, probe, url):
    """The same settings, probed once more and alone."""
    known = probe.request.settings
    settings = f"sharding={known.sharding},micro_batch_size={known.micro_batch_size}"
    return Measurement.from_dict(
        run(*TUNER, "probe", *asked, "--settings", settings, "--db", url)["probe"]["measurement"]
    )


def assert_memory_is_its_own(asked, probes, tmp_path):
    """The lightest probe that others went before allocates what it allocates alone."""
    before = [m.memory.allocated_bytes for _, m in probes if m.memory]
    assert len(set(before)) > 1, "one of them is lighter"
    probe, warm = min(probes[1:], key=lambda pair: pair[1].memory.allocated_bytes)
    alone = cold(asked, probe, database(tmp_path, "alone")).memory
    assert alone is not None
    assert warm.memory is not None
    for name in ("allocated_bytes", "allocated_low_bytes", "by_phase", "by_category"):
        assert getattr(warm.memory, name) == getattr(alone, name), name


def test_suggest_measured(gpus, model, tmp_path):
    gpus(2)
    asked, url = question(model, "local", 8, "measured"), database(tmp_path, "measured")
    found = run(*TUNER, "suggest", *asked, *KNOBS, *THREE, "--db", url)
    assert found["state"] == "done"
    assert (found["cluster"]["gpus_per_node"], found["cluster"]["gpu"]["name"]) == (2, "h200")
    best = found["best"]
    assert best["provenance"] == best["memory"]["allocated_gib"]["provenance"] == "measured"
    assert best["guard"]["verdict"] == "passed", best["guard"]
    probes = probes_of(url, found["study_id"])
    assert 2 <= len(probes) <= 3
    for _, measurement in probes:
        assert len(measurement.memory.per_rank_bytes) == 2
        held = sum(measurement.memory.by_category.values())
        assert held >= measurement.memory.allocated_bytes > 300 * MIB  # bf16, AdamW, 88M or half
        assert measurement.memory.overhead_bytes > 512 * MIB  # context and communicators
        assert measurement.hardware["device"] == "NVIDIA H200"
    assert_memory_is_its_own(asked, probes, tmp_path)


def test_suggest_emulated(gpus, model, tmp_path):
    gpus(1)
    asked = question(model, "2x8xh100-80gb", 64, "emulated")
    url = database(tmp_path, "emulated")
    found = run(*TUNER, "suggest", *asked, *KNOBS, *THREE, "--db", url)
    assert found["state"] == "done"
    best = found["best"]
    assert best["memory"]["allocated_gib"]["provenance"] == "emulated"
    assert best["provenance"] == "predicted"  # as its speed is: an H200 plays an H100
    assert best["guard"]["verdict"] == "passed", best["guard"]
    probes = probes_of(url, found["study_id"])
    for _, measurement in probes:
        assert len(measurement.memory.per_rank_bytes) == 1
        assert measurement.emulation.stands_in
        assert measurement.emulation.exposed_s
    assert_memory_is_its_own(asked, probes, tmp_path)


def test_suggest_rehearsed(standin, model, tmp_path, monkeypatch):
    """On a machine without a GPU: the ranks alone have the stand-in, with that GPU's memory."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    asked, url = question(model, "2x8xh100-80gb", 64, "rehearsed"), database(tmp_path, "rehearsed")
    found = run(*TUNER, "suggest", *asked, *KNOBS, "--db", url)
    assert found["state"] == "done"
    best = found["best"]
    assert best["memory"]["basis"] == "rehearsed"
    assert best["memory"]["allocated_gib"]["provenance"] == "rehearsed"
    assert best["step_time_s"]["provenance"] == best["provenance"] == "predicted"
    assert found["cost"]["gpu_s"] == 0
    for probe, measurement in probes_of(url, found["study_id"]):
        assert probe.request.fidelity == "rehearsed"
        assert (measurement.step_times_s, measurement.emulation) == ({}, None)
        assert len(measurement.memory.per_rank_bytes) == 1
        assert measurement.memory.reserved_bytes >= measurement.memory.allocated_bytes > 60 * MIB
        assert measurement.collectives
        assert "without a GPU" in measurement.hardware["device"]
    small = (*asked, "--memory-limit", "0.9GiB", "--settings", "sharding=ddp,micro_batch_size=4")
    done = subprocess.run([*TUNER, "probe", *small, "--db", url], capture_output=True, text=True)
    assert done.returncode == 3, done.stderr + done.stdout
    measurement = json.loads(done.stdout)["probe"]["measurement"]
    assert measurement["outcome"] == "oom"
    assert measurement["oom"]["limit_bytes"] <= 0.9 * 2**30


def test_suggest_a_script_rehearsed(standin, model, tmp_path, monkeypatch):
    """A script that reports nothing: its own micro-batch, accumulation and checkpointing."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    script = ROOT / "tests" / "cuda" / "scripts" / "sharded.py"
    asked, url = question(model, "2x8xh100-80gb", 64, "rehearsed"), database(tmp_path, "script")
    knobs = ("--knob", "sharding=full_shard", "--knob", "tp_size=1",
             "--knob", "micro_batch_size=1,2,4", "--knob", "activation_checkpointing=none,full",
             "--knob", "sync_each_batch=true")  # fmt: skip
    told = (
        *("--micro-batch", "{micro_batch_size}", "--accumulation", "{gradient_accumulation_steps}"),
        "{activation_checkpointing=full?--checkpointing}",
    )
    limit = ("--memory-limit", "1.6GiB")
    found = run(*TUNER, "suggest", "--script", str(script), *asked, *knobs, *limit,
                "--db", url, "--", *told)  # fmt: skip
    assert found["state"] == "done"
    best = found["best"]
    assert best["memory"]["allocated_gib"]["provenance"] == "rehearsed"
    assert best["step_time_s"]["provenance"] == "predicted"
    assert best["memory"]["needed_gib"]["value"] <= 1.6
    probes = probes_of(url, found["study_id"])
    sizes = {probe.request.settings.micro_batch_size: m.memory for probe, m in probes}
    for memory in sizes.values():
        assert memory.overhead_bytes > 512 * MIB
        assert {"forward", "backward", "optimizer"} <= memory.by_phase.keys()
    assert found["launch"]["argv"][0] == "torchrun"


def test_calibrate(gpus, tmp_path):
    gpus(2)
    url = database(tmp_path, "rates")
    found = run(*TUNER, "calibrate", "--cluster", "local", "--json", "--db", url)
    assert found["cluster"] == "2xh200"
    assert {"bf16", "fp32"} <= found["compute"].keys()
    assert "intra" in found["links"]
    kinds = {reading["case"]["kind"] for reading in found["readings"]}
    assert {"copy", "layers"} <= kinds
    with open_store(url) as store:
        kept = store.calibration(parse_cluster("2xh200"), found["versions"])
    assert kept.at == found["at"]


def test_bench_gpu_in_small(gpus, tmp_path):
    gpus(1)
    out = tmp_path / "reduced.json"
    program = ROOT / "benchmarks" / "bench_gpu.py"
    done = subprocess.run(
        [sys.executable, str(program), "all", "--reduced", "--minutes", "60", "--out", str(out)],
        cwd=tmp_path, capture_output=True, text=True, timeout=LONGEST_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(out.read_text())
    assert (result["name"], result["device"]) == ("h200", "NVIDIA H200")
    rows = {part: [row for row in result["rows"] if row["part"] == part]
            for part in ("warm", "memory", "recompute", "seed", "time", "grid")}  # fmt: skip
    for row in rows["memory"] + rows["recompute"]:
        assert row["outcome"] == "ok", row["detail"]
        assert abs(row["predicted"]["dry_run"]["error"]) < 0.05
    assert [row["way"] for row in rows["warm"]] == ["cold", "cold", "warm", "warm"]
    sizes = [row["measurement"]["memory"]["by_phase"] for row in rows["warm"]]
    assert sizes[:2] == sizes[2:]
    fits, does_not = rows["seed"]
    assert (fits["outcome"], does_not["outcome"]) == ("ok", "oom")
    shortage = does_not["measurement"]["oom"]
    assert shortage["allocated_bytes"] <= shortage["limit_bytes"] == does_not["limit_bytes"]
    assert len(rows["grid"]) == 2
    assert {row["outcome"] for row in rows["time"] + rows["grid"]} == {"ok"}
    assert result["rates"]["cluster"] == "1xh200"
