from pathlib import Path

import pytest

from tests.process.workers.launchers.contract import *  # noqa: F403
from tests.process.workers.launchers.contract import finish
from tuner.environment import PASSED_BY_NAME
from workers.launchers.base import RankProcess, rank_environment
from workers.launchers.local import LocalLauncher


@pytest.fixture
def launcher():
    return LocalLauncher()


@pytest.fixture
def nodes():
    return 1


@pytest.fixture
def supervisor():
    return "from workers.launchers.local import LocalLauncher; launcher = LocalLauncher()"


def test_no_rank_is_left_when_a_later_one_cannot_start(make_job, monkeypatch, alive, tmp_path):
    start, started = RankProcess.start, []

    def only_the_first(self):
        if started:
            raise BlockingIOError("no more processes")
        started.append(start(self))

    monkeypatch.setattr(RankProcess, "start", only_the_first)
    with pytest.raises(BlockingIOError):
        LocalLauncher().start(make_job({"*": ["hang"]}))
    assert not alive(str(tmp_path))


def test_no_file_descriptor_is_left_open(make_job):
    before = len(list(Path("/proc/self/fd").iterdir()))
    finish(LocalLauncher().start(make_job({"*": ["ok"]})))
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_ranks_inherit_what_a_stack_is_configured_by_and_nothing_else(make_job):
    passes = {"PATH": "/bin", "HF_HOME": "/data/hf", "NCCL_DEBUG": "INFO", "PYTHONPATH": "/mine"}
    secret = {
        "TUNER_DB": "postgresql://u:secret@host/db", "HF_TOKEN": "secret", "PGPASSWORD": "secret",
        "POSTGRES_PASSWORD": "secret", "DATABASE_URL": "postgresql://u:secret@host/db",
        "AWS_SECRET_ACCESS_KEY": "secret", "SLURM_JWT": "secret", "NCCL_TOKEN": "secret",
    }  # fmt: skip
    others = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "1", "MASTER_ADDR": "elsewhere"}
    inherited = {
        **passes,
        **secret,
        **others,
        "OMP_NUM_THREADS": "64",
        "SITE_A": "1",
        "SITE_B": "2",
    }
    job = make_job({}, device="cuda", ranks=4096)
    environment = rank_environment(job, 5, inherited)
    assert environment.items() >= passes.items()
    assert (environment["RANK"], environment["OMP_NUM_THREADS"]) == ("5", "1")
    assert not (secret | others).keys() & environment.keys()
    assert "SITE_A" not in environment
    named = rank_environment(job, 5, {**inherited, PASSED_BY_NAME: "SITE_*, HF_TOKEN,NCCL_*"})
    assert (named["SITE_A"], named["SITE_B"], named["HF_TOKEN"]) == ("1", "2", "secret")
    assert "NCCL_TOKEN" not in named, "a secret passes by its whole name alone"
    assert named[PASSED_BY_NAME], "ranks of another node are to hear of it"
    assert "GLOO_SOCKET_IFNAME" not in environment


def test_ranks_are_the_first_to_go_when_memory_is_out(make_job):
    run = LocalLauncher().start(make_job({"*": ["hang"]}))
    try:
        adjusted = {
            Path(f"/proc/{pid}/oom_score_adj").read_text().strip()
            for pid in (rank.pid for rank in run.ranks)
        }
    finally:
        run.cancel()
    assert adjusted == {"1000"}


def test_a_rank_that_plays_one_of_many_has_its_share_of_the_cores(make_job, monkeypatch):
    monkeypatch.setattr("workers.launchers.base.usable_cores", lambda: 16)
    for ranks, sharing, threads in ((1, 8, "2"), (1, None, "16"), (4, None, "4"), (1, 64, "1")):
        job = make_job({}, ranks=ranks, sharing=sharing)
        assert rank_environment(job, 0, {})["OMP_NUM_THREADS"] == threads


@pytest.mark.parametrize("inherited", [{}, {"CUDA_VISIBLE_DEVICES": "3, 1"}])
def test_ranks_see_the_gpus_of_their_job_from_their_start(make_job, inherited):
    alone = make_job({}, device="cuda", ranks=1, sharing=8, visible=("GPU-5c9d",))
    found = rank_environment(alone, 0, inherited)
    assert (found["CUDA_VISIBLE_DEVICES"], found["LOCAL_RANK"]) == ("GPU-5c9d", "0")
    both = make_job({}, device="cuda", ranks=2, visible=("3", "1"))
    assert rank_environment(both, 1, inherited)["CUDA_VISIBLE_DEVICES"] == "3,1"
    found = rank_environment(make_job({}, device="cuda", ranks=2), 0, inherited)
    assert found.get("CUDA_VISIBLE_DEVICES") == inherited.get("CUDA_VISIBLE_DEVICES")
    for visible in ((), ("3",)):
        on_cpu = make_job({}, ranks=1, visible=visible)
        assert rank_environment(on_cpu, 0, inherited)["CUDA_VISIBLE_DEVICES"] == ""
