from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.unit.launchfiles.cases import ABOUT, NANOTRON, TORCH, Case, trainer
from tuner.core.cluster import parse_cluster
from tuner.core.packing import Packing, read_documents
from tuner.core.script import read_script
from tuner.core.study import Question
from tuner.core.workload import Precision, Workload
from tuner.cost.constants import default_costs
from tuner.cost.prediction import uncovered
from tuner.cost.time.compute import attention_work
from tuner.errors import UsageError
from tuner.launchfiles import export
from tuner.model import published_model
from tuner.space.rules import fixed_tp_size

LONG_TAILED = {"histogram": [[60, 1000], [200, 600], [500, 200], [900, 100], [5000, 10]]}


def packed(documents=None, variant="varlen"):
    given = {} if documents is None else {"documents": documents}
    return Packing.from_dict({"variant": variant, **given})


def test_a_row_is_full_and_has_each_length_in_its_share():
    packing = packed(LONG_TAILED)
    row = packing.row(2**20)
    assert sum(row) == 2**20
    tokens = sum(length * count for length, count in LONG_TAILED["histogram"])
    for length, count in LONG_TAILED["histogram"]:
        share = length * row.count(length) / sum(row)
        assert share == pytest.approx(length * count / tokens, abs=5000 / 2**20)
    cut = packing.row(1024)
    assert sum(cut) == 1024
    assert max(cut) <= 1024
    assert packed({"mean": 512}).row(1100) == (512, 512, 76)
    assert packed().row(2048) == (2048,)
    assert packed({"lengths": [100, 300]}, "padded").row(2048) == (200,)
    assert packed({"lengths": [100, 300]}, "padded").useful_share(1000) == 0.2


COUNTED = st.tuples(st.integers(1, 9000), st.integers(1, 400))


@given(histogram=st.lists(COUNTED, min_size=1, max_size=8), length=st.integers(1, 9000))
@example(histogram=[(8000, 1), (300, 1), (100, 70)], length=8192)
@example(histogram=[(1000, 1), (10, 1), (5, 198)], length=1024)
def test_a_row_is_of_whole_documents_and_full(histogram, length):
    row = packed({"histogram": histogram}).row(length)
    assert sum(row) == length
    assert min(row) >= 1
    lengths = {min(one, length) for one, _ in histogram}
    assert set(row[:-1]) <= lengths  # the last is one too, or what is left
    assert row[-1] in lengths or row[-1] < min(lengths)


def test_ways_to_say_documents_are_one():
    wanted = packed({"lengths": [5, 3, 5]})
    assert packed({"histogram": [[3, 1], [5, 1], [5, 1]]}) == wanted
    assert Packing.from_dict(wanted.as_dict()) == wanted
    wrong = [{}, {"mean": 0}, {"mean": float("nan")}, {"lengths": []}, {"lengths": [0]}, 7]
    wrong += [{"lengths": [True]}, {"lengths": [1.5]}, {"histogram": [[3]]}, {"histogram": "3x1"}]
    wrong += [{"other": 1}, {"mean": 3, "lengths": [3]}, [[512, 10]], ((512, 10),), [512]]
    wrong += [{"mean": 10**400}, {"mean": float("inf")}, {"mean": -3}]
    for one in wrong:
        with pytest.raises(UsageError, match="documents"):
            read_documents(one)
    with pytest.raises(UsageError, match="documents"):
        packed(variant="padded")


def workload(model="llama-3.1-8b", **fields):
    given = {"sequence_length": 2048, "global_batch_size": 8, **fields}
    return Workload(model=published_model(model), **given)


def test_a_workload_without_packing_is_what_it_was():
    assert "packing" not in workload().as_dict()
    found = workload(packing=packed(LONG_TAILED))
    assert Workload.from_dict(found.as_dict()) == found
    asked = Case(settings="sharding=ddp").parts()[0]
    other = Case(settings="sharding=ddp", workload={"packing": packed()}).parts()[0]
    assert Question.from_dict(other.as_dict()) == other
    assert other.identity != asked.identity


@pytest.mark.parametrize(
    ("model", "variant", "said"),
    [
        ("mpt-7b", "position_ids", "positions are distances"),
        ("gemma-2-2b", "varlen", "capped scores"),
        ("starcoderbase", "varlen", "would attend across documents"),
        ("starcoderbase", "position_ids", ""),
        ("gemma-2-2b", "block_diagonal", ""),
        ("mistral-7b-v0.1", "varlen", ""),
    ],
)
def test_models_that_are_not_packed_so_are_refused(model, variant, said):
    if not said:  # windows are longer than the sequence
        assert workload(model, packing=packed(variant=variant)).masked is (variant != "varlen")
        return
    with pytest.raises(UsageError, match=said):
        workload(model, packing=packed(variant=variant))


def test_windows_within_a_sequence_leave_position_ids():
    for variant in ("varlen", "block_diagonal"):
        with pytest.raises(UsageError, match="take position_ids"):
            workload("mistral-7b-v0.1", sequence_length=6144, packing=packed(variant=variant))


def test_a_kernel_without_a_mask_attends_to_each_document():
    cluster, costs = parse_cluster("8xa100-80gb"), default_costs().torch

    def work(packing):
        asked = workload(packing=packing)
        return attention_work(asked, cluster, costs, again=(0.0, 0.0))

    whole = work(None)
    assert work(packed()) == whole  # the most that there can be
    assert work(packed({"mean": 256})) == pytest.approx(whole * (256 + 128) / (2048 + 128))
    # a mask has the kernel go through all keys
    assert work(packed({"mean": 256}, "position_ids")) > whole


@pytest.mark.parametrize(
    ("model", "variant", "first", "before"),
    [
        ("llama-3.1-8b", "position_ids", "4.53.1", "4.53.0"),
        ("llama-3.1-8b", "varlen", "4.44.0", "4.43.4"),
        ("llama-3.1-8b", "block_diagonal", "4.44.0", "4.43.4"),
        ("gpt2", "position_ids", "4.55.0", "4.54.1"),
        ("gpt2", "varlen", "5.2.0", "5.1.0"),
        ("llama-3.1-8b", "padded", "4.38.2", ""),
    ],
)
def test_releases_whose_tokens_see_other_documents_are_refused(model, variant, first, before):
    documents = {"mean": 64} if variant == "padded" else None

    def ask(release):
        given = {"packing": packed(documents, variant)}
        stack = trainer(transformers=release, accelerate="1.5", torch="2.6")
        case = Case(model=model, settings="sharding=ddp", framework=stack, workload=given)
        return " ".join(export("accelerate", *case.parts(), ABOUT).replace("#", "").split())

    needed = f"transformers {first.removesuffix('.0')} or newer"
    assert (needed in ask(first)) == bool(before)
    if before:
        with pytest.raises(UsageError, match=f"needs {needed}: in {before} tokens of"):
            ask(before)


def test_where_flash_attention_is_not_is_said(tmp_path):
    def ask(cluster, **fields):
        given = {"packing": packed(), **fields}
        case = Case(settings="sharding=ddp", cluster=cluster, workload=given)
        return case.parts()[0]

    with pytest.raises(UsageError, match="16 bits"):
        ask("a100-80gb", precision=Precision.FP32)
    with pytest.raises(UsageError, match=r"8\.0 or more"):
        ask("v100-32gb")
    (tmp_path / "train.py").touch()
    own = read_script("train.py", arguments=("{micro_batch_size}",), folder=tmp_path)
    of_its_own = replace(workload(packing=packed()), precision=Precision.FP32)
    asked = ask("a100-80gb")
    replace(asked, workload=of_its_own, framework=TORCH, script=own)  # its attention is its own
    on_cpu = ask("cpu:2", precision=Precision.FP32)
    assert fixed_tp_size(on_cpu) is not None
    narrow = workload(packing=packed())
    assert "nanotron's packing" in uncovered(narrow, NANOTRON)
