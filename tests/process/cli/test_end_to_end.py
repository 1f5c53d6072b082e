"""The commands as their users run them: real probes of a tiny model on two CPU processes."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import psutil
import pytest
import yaml

from tests.waiting import until
from tuner.core.configuration import parse_settings
from tuner.core.framework import installed_versions
from tuner.core.measurement import CheckState, Outcome
from tuner.core.study import ProbeState
from tuner.explain.known import answer
from tuner.guard.check import GuardCheck
from tuner.guard.faults import replicas_of
from tuner.guard.replica import family_of
from tuner.space import check_settings
from tuner.store import open_store

PROGRAM = (sys.executable, "-P", "-c", "import sys; from tuner.cli import main; sys.exit(main())")
LONGEST_S = 900.0
"""For anything here: a machine may be busy."""


@pytest.fixture
def command(tiny):
    """The argv of a command about the tiny model; two settings are legal."""

    def argv(name, *options):
        return [
            *PROGRAM,
            name,
            *("--model", tiny),
            *("--cluster", "cpu:2"),
            *("--framework", "accelerate"),
            *("--precision", "bf16"),
            *("--global-batch-size", "4"),
            *("--sequence-length", "32"),
            *("--knob", "sharding=ddp,full_shard"),
            *("--knob", "micro_batch_size=2"),
            *("--knob", "activation_checkpointing=none"),
            *options,
        ]

    return argv


@pytest.fixture
def judged(question, environment):
    """Verdicts on the replicas of both settings, kept: no ranks are started to train them."""
    question = replace(question, workload=replace(question.workload, global_batch_size=4))
    versions = installed_versions()
    with open_store() as store:
        for sharding in ("ddp", "full_shard"):
            settings = parse_settings(f"sharding={sharding},micro_batch_size=2")
            for replica in replicas_of(question, check_settings(question, settings)):
                store.keep_check(
                    GuardCheck(
                        key=replica.key(versions),
                        family=family_of(question),
                        result=CheckState.PASSED,
                        outcome=Outcome.OK,
                        versions=versions,
                    )
                )
        return store.checks().keys()


def run(argv, environment):
    return subprocess.run(
        argv, capture_output=True, text=True, check=False, env=environment, timeout=LONGEST_S
    )


@pytest.mark.usefixtures("judged")
@pytest.mark.smoke
def test_suggest_probes_answers_and_is_continued(command, environment, preloaded, tmp_path):
    path = tmp_path / "accelerate.yaml"
    first = run(
        command("suggest", "--max-probes", "2", "--json", "--write", f"accelerate={path}"),
        {**environment, **preloaded.environment},
    )
    assert first.returncode == 0, first.stderr
    found = json.loads(first.stdout)
    assert found["best"]["provenance"] == "measured"
    # The second is ended early where it is seen to be much slower than the first.
    assert found["probes"] in ({"ok": 2}, {"ok": 1, "stopped_early": 1})
    assert found["state"] == "done"
    lines = first.stderr.splitlines()
    assert lines[0].startswith(f"study {found['study_id']}: tiny on cpu:2 (accelerate), ")
    assert lines[1].startswith("probe #1 (1/2): ok")
    assert lines[2].startswith(("probe #2 (2/2): ok", "probe #2 (2/2): stopped_early"))
    assert len(lines) == 3

    with open_store() as store:
        study = store.study(found["study_id"])
    assert {verdict.result for verdict in study.guards.values()} == {CheckState.PASSED}
    assert str(answer(study).best.settings.sharding) == found["best"]["settings"]["sharding"]
    assert yaml.safe_load(path.read_text())["num_processes"] == 2
    assert found["launch"]["files"] == {str(path): path.read_text()}
    exported = run([*PROGRAM, "export", found["study_id"], "accelerate"], environment)
    assert yaml.safe_load(exported.stdout) == yaml.safe_load(path.read_text())

    again = run(command("suggest", "--max-probes", "2"), environment)
    assert again.returncode == 0, again.stderr
    assert again.stderr.splitlines()[1].startswith("answered from what is stored, 2 probes since ")
    assert f"\nMore     tuner studies show {found['study_id']} --why\n" in again.stdout


def test_adapters_of_a_type_that_only_dry_runs_know_are_probed(environment, preloaded, tmp_path):
    """Its linear layers have names that peft alone knows; no replica of it is trained."""
    path = tmp_path / "config.json"
    sizes = {"hidden_size": 64, "n_layer": 4, "n_head": 4, "vocab_size": 512}
    path.write_text(json.dumps({"model_type": "bloom", **sizes}))
    argv = (*PROGRAM, "suggest", "--model", str(path), "--cluster", "cpu:2",
            "--framework", "accelerate", "--precision", "fp32", "--global-batch-size", "4",
            "--sequence-length", "32", "--adapter", "lora", "--knob", "sharding=ddp",
            "--knob", "micro_batch_size=2", "--knob", "activation_checkpointing=none",
            "--max-probes", "1", "--json")  # fmt: skip
    done = run(argv, {**environment, **preloaded.environment})
    assert done.returncode == 0, done.stderr
    best = json.loads(done.stdout)["best"]
    assert best["provenance"] == "measured"
    assert best["guard"]["verdict"] == "not_checked"


@pytest.mark.long
def test_probe_measures_repeats_and_runs_out_of_memory(command, environment):
    settings = ("--settings", "sharding=full_shard,micro_batch_size=2", "--json")
    first = run(command("probe", *settings), environment)
    assert first.returncode == 0, first.stderr
    found = json.loads(first.stdout)["probe"]
    assert (found["outcome"], found["fits"], found["repetition"]) == ("ok", True, 0)
    assert found["settings"]["gradient_accumulation_steps"] == 1
    assert found["tokens_per_s_per_gpu"]["provenance"] == "measured"
    peak = found["measurement"]["memory"]["allocated_bytes"]

    second = run(command("probe", *settings, "--memory-limit", f"{peak // 2}B"), environment)
    assert second.returncode == 3, second.stderr
    found = json.loads(second.stdout)["probe"]
    assert (found["outcome"], found["fits"], found["repetition"]) == ("oom", False, 1)
    shortage = found["measurement"]["oom"]
    assert shortage["phase"]
    assert shortage["allocated_bytes"] <= shortage["limit_bytes"] == peak // 2
    last = second.stderr.splitlines()[-1]
    assert last.startswith("tuner: error: these settings do not fit: rank ")
    with open_store() as store:
        (summary,) = store.studies()
        kept = store.study(summary.id)
    assert kept.limits.memory_limit_bytes is None, "one probe's limit is not the study's"
    assert answer(kept).best is not None


HOLDS = """\
import os, pathlib, sys, time

class Holds:
    def find_spec(self, name, path=None, target=None):
        if name == "torch" and "workers.probe" in sys.orig_argv:
            folder = pathlib.Path({folder!r})
            (folder / f"held-{{os.getpid()}}").touch()
            while not (folder / "let-go").exists():
                time.sleep(0.02)

sys.meta_path.insert(0, Holds())
"""
"""Python reads it when it starts: ranks come as far as to import torch, and wait there."""


@pytest.fixture
def held(environment, tmp_path):
    """A folder where each rank that waits leaves a file, until ``let-go`` is there."""
    folder = tmp_path / "held"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(HOLDS.format(folder=str(folder)))
    environment["PYTHONPATH"] = os.pathsep.join([str(folder), environment["PYTHONPATH"]])
    return folder


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGKILL, marks=pytest.mark.long), signal.SIGINT]
)
def test_an_ended_command_leaves_no_process_and_is_continued(
    command, environment, judged, held, number, preloaded
):
    argv = command("suggest", "--max-probes", "1")
    with subprocess.Popen(
        argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        until(lambda: len(list(held.glob("held-*"))) == 2)
        family = psutil.Process(process.pid).children(recursive=True)
        assert len(family) >= 3  # the worker and its two ranks
        os.kill(process.pid, number)
        told = process.stderr.read()
    until(lambda: not any(alive(one) for one in family))
    if number is signal.SIGINT:
        assert process.returncode == 130
        assert told.splitlines()[-1].endswith(
            "keeps its 0 probes, and the same command continues it"
        )

    (held / "let-go").touch()
    checked = run([*PROGRAM, "db", "check"], environment)
    assert checked.stdout.endswith(": in order\n"), checked.stdout
    again = run(argv, {**environment, **preloaded.environment})
    assert again.returncode == 0, again.stderr
    with open_store() as store:
        (summary,) = store.studies()
        study = store.study(summary.id)
        assert store.checks().keys() == judged, "no other replica was trained"
    assert [probe.state for probe in study.probes] == [ProbeState.DONE]


def alive(process):
    """Whether it runs; one that waits to be reaped by its parent does not."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


PREDICTED = ("--cluster", "2xa100-80gb", "--fidelity", "predicted")
"""A cluster that is not here; given last, it wins over the command's own."""


def test_suggest_predicts_with_dry_runs_and_then_from_the_cache(command, environment, preloaded):
    environment |= preloaded.environment
    first = run(command("suggest", *PREDICTED, "--json"), environment)
    assert first.returncode == 0, first.stderr
    found = json.loads(first.stdout)
    assert found["best"]["provenance"] == "predicted"
    assert found["best"]["memory"]["basis"] == "dry_run"
    assert set(found["probes"]) == {"ok"}
    assert found["best"]["guard"]["versions"]["torch"]
    assert any(line.startswith("dry run #d1 (1/3): ok") for line in first.stderr.splitlines())

    other = [*command("suggest", *PREDICTED, "--json"), "--global-batch-size", "8"]
    cached = run(other, environment)
    assert cached.returncode == 0, cached.stderr
    assert json.loads(cached.stdout)["best"]["memory"]["basis"] == "dry_run"
