"""``tuner doctor`` on this machine, with verdicts put into its database by hand."""

from importlib import metadata
from itertools import takewhile

import pytest

from tuner.cli.console import TEXT_WIDTH
from tuner.core.framework import installed_versions
from tuner.core.measurement import CheckState, Outcome
from tuner.guard.check import GuardCheck
from tuner.guard.replica import family_of, replica_of, usual_cases
from tuner.store import open_store


def keep(database, result, outcome):
    """Keep a verdict on the first of the usual cases."""
    question, settings = next(usual_cases())
    replica, versions = replica_of(question, settings), installed_versions()
    verdict = GuardCheck(
        key=replica.key(versions), family=family_of(question), result=result, outcome=outcome,
        model_type="llama", detail="as planted", settings=replica.settings.as_dict(),
        ranks=replica.cluster.world_size, versions=versions, structure="a replica of ddp",
    )  # fmt: skip
    with open_store(f"sqlite:///{database}") as store:
        store.keep_check(verdict)


def test_before_anything_was_checked(cli, database):
    result = cli("doctor")
    assert result.code == 0
    assert "versions" in result.out
    assert "torch " in result.out
    assert "measured   yes" in result.out
    assert "tp_recompute_allgather" in result.out
    assert "cpu_offload=true: not seen to act on a CPU" in result.out
    assert "tuner doctor --run checks them" in result.out
    assert not database.exists()


def test_facts_are_as_wide_as_text_without_blanks_at_their_ends(cli):
    lines = [*takewhile(bool, cli("doctor").out.splitlines())]
    assert len(lines) > 5
    assert [line for line in lines if line != line.rstrip() or len(line) > TEXT_WIDTH] == []


def test_a_failure_is_the_exit_code(cli, database):
    keep(database, CheckState.FAILED, Outcome.WRONG_RESULT)
    result = cli("doctor")
    assert result.code == 1
    assert "wrong: a replica of ddp trains wrongly here, and no one knob is known" in result.out
    assert "as planted" in result.out


@pytest.mark.usefixtures("cli", "preloading")
def test_a_cpu_build_of_torch_on_a_machine_with_gpus(cli, tmp_path, monkeypatch):
    if not metadata.version("torch").endswith("+cpu"):
        pytest.skip("this Python has a CUDA build of torch")
    smi = tmp_path / "bin" / "nvidia-smi"
    smi.parent.mkdir()
    smi.write_text(
        "#!/bin/sh\ncase $1 in *uuid*) echo GPU-1, NVIDIA H200, 143771, Disabled;;"
        " *name) echo NVIDIA H200;; esac\n"
    )
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(smi.parent), prepend=":")
    result = cli("doctor", "--json")
    assert result.code == 1
    (serious,) = (problem for problem in result.json["problems"] if problem["serious"])
    assert "is a CPU build; nvidia-smi shows 1 x NVIDIA H200" in serious["what"]
