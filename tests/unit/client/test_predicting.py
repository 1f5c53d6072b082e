"""``tuner.predict``: one case, or several, without a dry run."""

import json
import pickle

import numpy as np
import pytest

import tuner
from tests.models import TINY

CASE = {
    "workload": {"model": TINY, "sequence_length": 32, "global_batch_size": 16},
    "cluster": "2xa100-80gb",
    "settings": "sharding=ddp,micro_batch_size=2",
}


@pytest.fixture(autouse=True)
def own_database(environment):
    """Nobody else's dry runs."""


@pytest.fixture
def single(tiny):
    """The same case as arguments."""
    return {
        "model": tiny, "cluster": "2xa100-80gb", "global_batch_size": 16, "sequence_length": 32,
        "settings": "sharding=ddp,micro_batch_size=2",
    }  # fmt: skip


def test_one_case(single, cli, tmp_path):
    found = tuner.predict(CASE, dry_runs="none")
    assert found.fits is True
    assert found.settings.gradient_accumulation_steps == 4
    assert found.allocated_gib.provenance is tuner.Provenance.PREDICTED
    assert found.step_time_s.value is not None
    assert sum(found.breakdown_gib.values()) == pytest.approx(found.allocated_gib.value)
    assert tuner.predict(**single, dry_runs="none").as_dict() == found.as_dict()
    lines = tmp_path / "cases.jsonl"
    lines.write_text(json.dumps(CASE))
    answer = cli("predict", "--cases", str(lines), "--dry-runs", "none").json
    assert answer == {**CASE, **found.as_dict()}


def test_numbers_may_be_numpy_s(single):
    theirs = {"global_batch_size": np.int64(16), "headroom": np.float32(0.5)}
    found = tuner.predict(**{**single, **theirs}, dry_runs="none")
    assert found.as_dict() == tuner.predict(**single, headroom=0.5, dry_runs="none").as_dict()
    settings = {"sharding": "ddp", "micro_batch_size": np.int16(2)}
    (again,) = tuner.predict([{**CASE, "settings": settings}], dry_runs="none")
    assert again.as_dict() == tuner.predict(CASE, dry_runs="none").as_dict()


def test_a_prediction_and_an_error_can_be_sent_to_another_process(single):
    found = tuner.predict(CASE, dry_runs="none")
    assert pickle.loads(pickle.dumps(found)) == found
    with pytest.raises(tuner.UsageError) as caught:
        tuner.predict(**{**single, "model": "lama-3.1-8b"})
    error = pickle.loads(pickle.dumps(caught.value))
    assert type(error) is type(caught.value)
    assert str(error) == str(caught.value)
    assert (error.field, error.nearest) == ("model", caught.value.nearest)


def test_several_cases_are_answered_in_order():
    large = {**CASE, "memory_limit_gib": 0.001}
    other = {**CASE, "cluster": {"nodes": 1, "gpus_per_node": 2, "gpu": "h300"}}
    found = tuner.predict([CASE, large, other], dry_runs="none")
    assert [one.fits for one in found] == [True, False, None]
    assert found[1].reason.startswith("needs ")
    assert "h300" in found[2].reason
    assert (found[2].settings, found[2].allocated_gib.value) == (None, None)
    assert found[2].provenance is tuner.Provenance.UNKNOWN
    assert tuner.predict([], dry_runs="none") == []


@pytest.mark.parametrize(
    ("cases", "said"),
    [
        ({**CASE, "settings": "sharding=fsdp"}, "settings.sharding: got 'fsdp'"),
        ([CASE, {**CASE, "cluster": "8 x"}], "cases[1].cluster: got '8 x'"),
        ([CASE, {**CASE, "bath": 1}], "cases[1].bath: got 1"),
        ([7], "cases[0]: got 7"),
        ("cases.jsonl", "cases: got 'cases.jsonl'; must be the fields of a case, or a list"),
        (7, "cases: got 7"),
    ],
)
def test_what_is_wrong_is_named(cases, said, database):
    with pytest.raises(tuner.UsageError) as caught:
        tuner.predict(cases)
    assert said in str(caught.value)
    assert not database.exists()


def test_arguments_of_a_single_case_are_checked(single, database):
    with pytest.raises(tuner.UsageError, match="global_batch_size: got '16'"):
        tuner.predict(**{**single, "global_batch_size": "16"})
    with pytest.raises(tuner.UsageError, match=r"headroom: got 0\.1; goes into each case"):
        tuner.predict([CASE], headroom=0.1)
    with pytest.raises(tuner.UsageError, match="dry_runs: got 'some'"):
        tuner.predict(CASE, dry_runs="some")
    with pytest.raises(tuner.UsageError, match=r"framework_versions: got \['torch'\]; must be an"):
        tuner.predict(**{**single, "framework_versions": ["torch"]})
    with pytest.raises(TypeError, match="sharding"):
        tuner.predict(**single, sharding="ddp")
    with pytest.raises(TypeError, match=r"^missing a required argument: 'cluster'$"):
        tuner.predict(model="stories15m")
    assert not database.exists()
