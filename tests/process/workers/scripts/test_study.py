"""A study of a script: its worker, and workers that serve."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest

from tests.process.workers.scripted import as_torchrun, asking_script, left
from tuner.core.launcher import LauncherName
from tuner.core.measurement import Outcome
from tuner.core.study import Limits, Question, StudyState
from tuner.errors import ProbeError
from tuner.explain.known import answer
from tuner.store import Store
from workers import __main__ as program
from workers import executor as script_slot
from workers.executor import WorkerOptions
from workers.launchers.site import LocalSite, default_launcher
from workers.serve import Service, Until
from workers.stop import StopRequest
from workers.worker import Worker

BOTH = ("{micro_batch_size}", "{gradient_accumulation_steps}")
Work = Callable[..., int]


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WorkerOptions:
    """Of workers whose scripts are started by the stand-in."""
    run = partial(script_slot.ScriptRun, argv=as_torchrun, peer_grace_s=0.5)
    monkeypatch.setattr(script_slot, "ScriptRun", run)
    return WorkerOptions(folder=tmp_path / "probes", lock=tmp_path / "lock", deadline_s=240.0)


def work(store: Store, study_id: str, options: WorkerOptions) -> int:
    return Worker(store, study_id, stop=StopRequest(), options=options).run()


TRAINS = """
    import sys, time
    from tuner.integrations import report_step
    micro, count = map(int, sys.argv[1:])
    while True:
        time.sleep(0.003 * count)
        report_step(loss=1.0, sequences=micro * count)
"""


def test_a_study_is_answered(
    store: Store, question: Question, options: WorkerOptions, tmp_path: Path
) -> None:
    asked = asking_script(question, tmp_path, whole=TRAINS, arguments=BOTH)
    study = store.ask(asked, Limits(max_probes=2))
    assert work(store, study.id, options) == 0
    study = store.study(study.id)
    assert study.state is StudyState.DONE
    assert [p.measurement and p.measurement.outcome for p in study.probes] == [Outcome.OK] * 2
    found = answer(study)
    assert found.best is not None
    assert found.best.settings in {probe.request.settings for probe in study.probes}
    assert str(found.provenance) == "measured"
    assert found.best.guard.verdict == "not_checked"
    assert (
        "the first loss that was reported lies within 0% of that of another" in found.best.guard.why
    )
    ran = [sentence for sentence in found.explanation if sentence.startswith("What ran is")]
    assert len(ran) == 1
    assert "train.py, through torchrun on 2 ranks; its memory is the peak resident set" in ran[0]
    assert not left(tmp_path)


@dataclass(frozen=True, kw_only=True)
class Nodes(LocalSite):
    """This machine, as if it were one of several that somebody else manages."""

    name: str = "Slurm job 12"
    is_here: bool = False


def test_a_worker_of_several_nodes_runs_no_script(
    store: Store, question: Question, options: WorkerOptions, tmp_path: Path
) -> None:
    study = store.ask(asking_script(question, tmp_path, whole=TRAINS, arguments=BOTH), Limits())
    with pytest.raises(ProbeError, match="nodes of Slurm job 12 here: ask in an allocation of one"):
        work(store, study.id, replace(options, site=Nodes()))
    assert store.study(study.id).state is StudyState.FAILED


def test_in_an_allocation_of_several_nodes_it_runs_on_the_one_where_it_was_asked(
    store: Store,
    question: Question,
    options: WorkerOptions,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    study = store.ask(asking_script(question, tmp_path, whole=TRAINS, arguments=BOTH), Limits())
    srun = tmp_path / "srun"
    srun.write_text("#!/bin/sh\nexit 1\n")
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    assert default_launcher() is LauncherName.SLURM  # what anything else would be run by
    argv = ["--db", store.url, "--study", study.id, "--probes", str(options.folder)]
    monkeypatch.setattr("sys.argv", ["workers", *argv])
    assert program._work(StopRequest(), program._command_line()) == 0
    assert store.study(study.id).state is StudyState.DONE


def test_a_script_that_never_reports_ends_the_study(
    store: Store, question: Question, options: WorkerOptions, tmp_path: Path
) -> None:
    study = store.ask(asking_script(question, tmp_path, whole="print('x')"), Limits())
    with pytest.raises(ProbeError, match="reported no step before its end"):
        work(store, study.id, options)
    study = store.study(study.id)
    assert study.state is StudyState.FAILED
    assert "add `from tuner.integrations import report_step`" in study.reason


def test_workers_that_serve_pass_over_it(
    store: Store,
    question: Question,
    options: WorkerOptions,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", logger="workers")
    study = store.ask(asking_script(question, tmp_path), Limits())
    for until in (Until.DRAINED, Until.ONCE):
        service = Service(store, stop=StopRequest(), until=until, options=options)
        assert service.run() == 0
        assert store.study(study.id).state is StudyState.QUEUED
        assert not store.study(study.id).probes
    assert "the command that asked runs its script" in caplog.text
