"""Which fidelity a question is answered at, and what is refused at which."""

from dataclasses import replace

import pytest

from tests.unit.cost import calibrations
from tuner.cli.options import SuggestAsked
from tuner.cli.values import read_options
from tuner.client.place import place_here
from tuner.core.cluster import parse_cluster
from tuner.core.framework import installed_versions
from tuner.core.measurement import Fidelity
from tuner.errors import UsageError
from tuner.machine import ReportedGpu
from tuner.store import open_store
from workers.calibrate import plan

A100 = ReportedGpu(name="NVIDIA A100-SXM4-80GB", memory_mib=81920)


@pytest.fixture
def has(monkeypatch):
    def set_up(*gpus):
        monkeypatch.setattr("tuner.machine.visible_gpus", lambda: gpus)

    return set_up


@pytest.fixture
def asked(tiny):
    return SuggestAsked(
        model=tiny, global_batch_size="8", sequence_length="32", cluster="4xa100-80gb"
    )


def placed(asked):
    return place_here(read_options(asked), asked.db)


@pytest.mark.parametrize(
    ("gpus", "fidelity", "most"), [(4, "measured", 20), (1, "emulated", 20), (0, "predicted", 3)]
)
def test_auto_is_the_strongest_that_there_is(has, asked, gpus, fidelity, most):
    has(*(A100,) * gpus)
    auto = replace(asked, fidelity="auto")
    found = placed(auto)
    assert (found.limits.fidelity, found.limits.max_probes) == (fidelity, most)
    assert found.notes[0].startswith(f"fidelity {fidelity}: this machine has ")
    few = replace(auto, max_probes="7")
    assert placed(few).limits.max_probes == 7


@pytest.mark.parametrize(
    ("why", "shows_gpu", "said"),
    [
        ("there is no gcc: a C compiler is needed", False, "no gcc: a C compiler is needed"),
        ("there is no gcc", True, "CUDA_VISIBLE_DEVICES= .* hides it"),
        ("", True, "this machine has a GPU"),
        ("", False, ""),
    ],
)
def test_a_rehearsal_is_refused_in_a_line(has, asked, monkeypatch, why, shows_gpu, said):
    has()
    monkeypatch.setattr("tuner.machine.why_no_standin", lambda: why)
    monkeypatch.setattr("tuner.machine.shows_gpu", lambda: shows_gpu)
    rehearsed = replace(asked, fidelity="rehearsed")
    if not said:
        limits = placed(rehearsed).limits
        assert (limits.fidelity, limits.max_probes) == (Fidelity.REHEARSED, 12)
        return
    with pytest.raises(UsageError, match=f"fidelity: .*is not possible here: .*{said}") as error:
        placed(rehearsed)
    assert "\n" not in str(error.value)


def test_a_rehearsal_is_of_nvidias_gpus(has, asked):
    has()
    with pytest.raises(UsageError, match="no GPUs of NVIDIA's"):
        placed(replace(asked, fidelity="rehearsed", cluster="cpu:2"))


def test_one_gpu_emulates_a_cluster_of_its_kind_or_of_a_smaller_one(has, asked):
    has(A100)
    with pytest.raises(UsageError, match="probes run here"):
        placed(asked)  # measured is the default, and is not chosen
    for cluster in ("4xa100-80gb", "16x8xa100-80gb", "8xa100-40gb"):
        question = replace(asked, fidelity="emulated", cluster=cluster, global_batch_size="128")
        assert placed(question).limits.fidelity is Fidelity.EMULATED
    with pytest.raises(UsageError, match="one here"):
        placed(replace(asked, fidelity="emulated", cluster="8xh200"))


@pytest.mark.parametrize("launcher", ["slurm", "ray"])
def test_nodes_of_a_launcher_are_looked_at_by_the_worker(has, asked, launcher):
    has(A100)
    several = replace(asked, cluster="2x4xa100-80gb")
    with pytest.raises(UsageError, match="probes run here"):
        placed(several)
    found = placed(replace(several, launcher=launcher))
    assert (found.limits.fidelity, found.probing) == ("measured", [f"--launcher={launcher}"])


def test_what_a_launcher_may_be(asked):
    for more, said in (
        ({"launcher": "mpi"}, "launcher: got 'mpi'; must be one of local, slurm, ray"),
        ({"ray": "10.0.0.1:6379"}, "ray: got '10.0.0.1:6379'; is for --launcher ray"),
    ):
        with pytest.raises(UsageError) as error:
            placed(replace(asked, cluster="cpu:2", **more))
        assert said in str(error.value)


def test_calibrated_links_have_a_price(asked, environment, tmp_path):
    """So they have without a file that states them, in the database that is asked."""
    cluster, url = parse_cluster("cpu:2"), f"sqlite:///{tmp_path / 'own.db'}"
    rates = calibrations.calibration_of(
        plan(cluster)["cases"], cluster, versions=installed_versions()
    )
    emulated = replace(asked, fidelity="emulated", cluster="cpu:2", db=url)
    with open_store(url) as store:
        for known in (None, replace(rates, links={})):
            if known is not None:
                store.keep_calibration(known)
            with pytest.raises(UsageError, match="link within a node is not known"):
                placed(emulated)
        store.keep_calibration(rates)
    assert placed(emulated).limits.fidelity is Fidelity.EMULATED
    with pytest.raises(UsageError, match="is not known"):  # not measured for ranks that share four
        placed(replace(emulated, cluster="cpu:4"))


def test_a_large_model_is_not_probed_on_cpus_where_a_gpu_was_expected(has, asked, monkeypatch):
    has()
    monkeypatch.setattr("tuner.machine.usable_cores", lambda: 2)
    monkeypatch.setattr("tuner.machine.memory_bytes", lambda: 2**40)
    large = replace(
        asked, model="llama-3.2-1b", sequence_length="4096", cluster="local", fidelity=None
    )
    with pytest.raises(UsageError, match=r"takes some 10:.*, .*--cluster cpu:2 says that"):
        placed(large)
    with pytest.raises(UsageError, match=r"takes some 6:"):  # no gradients of what is frozen
        placed(replace(large, adapter="lora"))
    with pytest.raises(UsageError, match=r"^tp_size: "):  # what nobody could run comes first
        placed(replace(large, knob=["tp_size=3"]))
    with pytest.raises(UsageError, match="no GPU is here, so it is cpu:2"):  # nor predicted of them
        placed(replace(large, fidelity="predicted"))
    assert placed(replace(large, cluster="cpu:2")).notes == ()
    small = placed(replace(large, model="stories15m", sequence_length="256"))
    assert small.notes[0].startswith("no GPU is here, so local is cpu:2")
    monkeypatch.setattr("tuner.machine.memory_bytes", lambda: 2**33)
    with pytest.raises(UsageError, match=r"where llama-3\.2-1b needs"):
        placed(large)
