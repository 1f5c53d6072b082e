"""The process that dry-runs: asked, answered, dead, silent, ended."""

import os
import sys
import time
from pathlib import Path

import pytest

from tuner.core.cluster import parse_cluster
from tuner.core.configuration import parse_settings
from tuner.core.framework import framework
from tuner.core.workload import Workload
from tuner.cost.memory.tensors import counts
from tuner.dryrun import DryRunner, DryRunStoppedError, dry_run_versions, plan_dry_runs, process
from tuner.errors import ProbeError
from tuner.model import published_model as read

STAND_IN = (sys.executable, str(Path(__file__).parent / "stand_in.py"))


def runner(**more):
    return DryRunner(command=STAND_IN, **more)


def ask(*requests, **more):
    with runner(**more) as known:
        return list(known.ask(requests))


def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_answers_come_in_any_order():
    found = ask({"id": "a", "do": "hold"}, {"id": "b", "do": "hold"}, {"id": "c"})
    assert [answer["id"] for answer in found] == ["c", "b", "a"]


def test_large_requests_and_answers_do_not_wait_for_each_other():
    requests = [{"id": str(i), "do": "large", "more": "y" * 300_000} for i in range(4)]
    found = ask(*requests)
    assert [len(answer["trace"]) for answer in found] == [3_000_000] * 4


def test_one_process_answers_again_and_again_and_ends_with_its_context():
    with runner() as known:
        pids = {next(known.ask([{"id": name}]))["trace"]["pid"] for name in "abc"}
        (pid,) = pids
        adjusted = Path(f"/proc/{pid}/oom_score_adj").read_text().strip()
        assert adjusted == "1000", "the first to go when memory is out"
    assert gone(pid)


def test_a_reason_to_stop_ends_the_process_and_the_next_one_answers():
    with runner() as known:
        pid = next(known.ask([{"id": "a"}]))["trace"]["pid"]
        calls = iter(["", "", "enough"])
        with pytest.raises(DryRunStoppedError, match="enough"):
            list(known.ask([{"id": "b", "do": "sleep"}], lambda: next(calls)))
        assert gone(pid)
        assert [answer["id"] for answer in known.ask([{"id": "c"}])] == ["c"]


@pytest.mark.parametrize("do", ["die", "kill"])
def test_a_process_that_dies_is_an_error_and_the_next_one_answers(do):
    with runner() as known:
        with pytest.raises(ProbeError, match="the dry-run program ended"):
            list(known.ask([{"id": "a", "do": do}]))
        assert [answer["id"] for answer in known.ask([{"id": "b"}])] == ["b"]


def test_a_silent_process_is_ended(monkeypatch):
    monkeypatch.setattr(process, "GRACE_S", 0.0)
    started = time.monotonic()
    with pytest.raises(ProbeError, match="said nothing"):
        ask({"id": "a", "do": "sleep"}, limit_s=0.5)
    assert time.monotonic() - started < 100


def test_an_exception_ends_the_process():
    def fails():
        with runner() as known:
            pid = next(known.ask([{"id": "a"}]))["trace"]["pid"]
            raise KeyError(pid)

    with pytest.raises(KeyError) as raised:
        fails()
    assert gone(raised.value.args[0])


@pytest.mark.smoke
def test_the_real_program_dry_runs_a_tiny_model():
    workload = Workload(model=read("stories15m"), sequence_length=16, global_batch_size=4)
    settings = parse_settings("sharding=full_shard")
    plan = plan_dry_runs(
        workload, parse_cluster("cpu:2"), framework("torch"), settings, dry_run_versions()
    )
    # started as users start it: CUDA builds of torch do not compute in backward after a fork
    command = (sys.executable, "-P", "-m", "workers.probe.dry")
    with DryRunner(limit_s=300.0, command=command) as known:
        (record,) = known.made([plan])
    assert record.error == ""
    peak = record.profile.peak(1, 1)
    weights = counts(workload.model).parameters * 2 / 2  # bf16, a half on each of two ranks
    assert peak.breakdown["parameters"] == pytest.approx(weights, rel=0.02)
    assert {c.op for c in record.profile.collectives(1, 1)} == {"all_gather", "reduce_scatter"}
