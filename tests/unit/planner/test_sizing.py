"""Sizes of a job, against all parts, lengths and models of which one was looked for."""

from dataclasses import replace

import pytest

from tests.records import VERSIONS
from tuner.client.request import SizeRequest, read
from tuner.core.cluster import parse_cluster
from tuner.core.measurement import Fidelity
from tuner.core.study import Limits
from tuner.errors import UsageError
from tuner.explain.facts import batch_divides_badly
from tuner.model import published_model
from tuner.planner.sizing import (
    SEQUENCE_STEP,
    Goal,
    Sized,
    _Sizer,
    awkward_batch,
    parts_of,
    size_cluster,
)
from tuner.planner.sizing import nothing_known as unknown

GIB = 2**30
# few layouts, so that all of them can be looked at in a test
KNOBS = {"sharding": ["full_shard", "ddp"], "tp_size": [1, 2], "fused_loss": [False]}


def question_of(cluster="4x4xa100-80gb", batch=96, knobs=KNOBS, **work):
    workload = {"model": "stories42m", "sequence_length": 512, **work}
    body = {
        "workload": {**workload, "global_batch_size": batch},
        "cluster": cluster,
        "knobs": knobs,
    }
    return read(SizeRequest, body).question_on(parse_cluster(cluster), VERSIONS)


def limits(gib):
    return Limits(fidelity=Fidelity.PREDICTED, memory_limit_bytes=int(gib * GIB))


def best_on_each(question, held):
    sizer = _Sizer(held, Goal(), unknown)
    return [
        (part.cluster.world_size, sizer.fits(part), sizer.speed(part))
        for part in parts_of(question)
    ]


def test_parts_are_those_that_something_is_legal_on():
    sizes = [part.cluster.world_size for part in parts_of(question_of(batch=96))]
    assert sizes == [1, 2, 3, 4, 8, 12, 16]
    assert [part.cluster.name for part in parts_of(question_of(batch=96))][-2:] == [
        "3x4xa100-80gb",
        "4x4xa100-80gb",
    ]
    odd = parts_of(question_of(batch=7, cluster="2x2xa100-80gb"))
    assert [part.cluster.world_size for part in odd] == [1, 2], "two share the layers"


@pytest.mark.parametrize("gib", [1.4, 1.5, 1.8])
def test_the_fewest_are_the_fewest_of_all_parts(gib):
    question, held = question_of(), limits(gib)
    each = best_on_each(question, held)
    fitting = [gpus for gpus, fits, _ in each if fits]
    assert all(fits == (speed > 0) for _, fits, speed in each)
    fastest, sizer = max(speed for _, _, speed in each), _Sizer(held, Goal(), unknown)
    for wanted in (fastest / 8, fastest / 2, fastest):
        row = size_cluster(question, held, Goal(tokens_per_s=wanted))
        assert row.fewest.gpus == fitting[0]
        assert row.reaching.gpus == next(gpus for gpus, _, speed in each if speed >= wanted)
        assert row.chosen is row.reaching
        assert not row.why
        slow = ((part.cluster.world_size, sizer.slow_end(part)) for part in parts_of(question))
        sure = next((gpus for gpus, speed in slow if speed >= wanted), None)
        takes = f"takes {sure} GPUs" if sure else "takes more than there are"
        told = [note.partition(" too ")[2] for note in row.notes if "slow end" in note]
        assert told == ([] if sure == row.reaching.gpus else [takes])
    missed = size_cluster(question, held, Goal(tokens_per_s=2 * fastest))
    assert (missed.reaching, missed.chosen) == (None, missed.fewest)
    assert f"of {2 * fastest:,.0f} tokens/s" in missed.why


def test_what_fits_nowhere_says_what_it_needs():
    row = size_cluster(question_of(), limits(0.3), Goal())
    assert (row.fewest, row.whole, row.longest_sequence, row.awkward) == (None, None, None, ())
    assert row.why.startswith("nothing is sure to fit on 16 GPUs: what needs least needs ")


def test_the_longest_sequence_is_the_longest_that_fits():
    question, held = question_of(cluster="4xa100-80gb"), limits(1.6)
    sizer = _Sizer(held, Goal(), unknown)
    most = question.workload.model.max_sequence_length
    lengths = range(SEQUENCE_STEP, most + 1, SEQUENCE_STEP)
    fitting = [
        length
        for length in lengths
        if sizer.fits(
            replace(question, workload=replace(question.workload, sequence_length=length))
        )
    ]
    assert fitting[-1] < most, "the test shows nothing"
    longest = size_cluster(question, held, Goal()).longest_sequence
    assert longest.question.workload.sequence_length == fitting[-1]
    assert longest.best.fits_surely


def test_the_largest_micro_batch_and_model_are_the_largest_that_fit():
    question, held = question_of(cluster="4xa100-80gb"), limits(1.6)
    family = [published_model(name) for name in ("stories15m", "stories42m", "stories110m")]
    row = size_cluster(question, held, Goal(), family=family)
    found = _Sizer(held, Goal(), unknown).forecast(question)
    micro = max(one.settings.micro_batch_size for one in found.fitting)
    assert row.largest_micro_batch.best.settings.micro_batch_size == micro
    larger = replace(question, workload=replace(question.workload, model=family[2]))
    assert not _Sizer(held, Goal(), unknown).fits(larger)
    assert row.largest_model.question.workload.model == family[1]
    taken = size_cluster(question, held, Goal(), family=family, takes_largest=True)
    assert (taken.model, taken.whole) == ("stories42m", row.largest_model)
    none = size_cluster(question, limits(0.3), Goal(), family=family, takes_largest=True)
    assert "none of stories15m, stories42m, stories110m" in none.why


def test_costs_and_times_follow_from_speed_with_their_intervals():
    question = question_of(cluster="2xa100-80gb")
    priced = replace(question, cluster=replace(question.cluster, price_per_gpu_hour=3.6))
    assert priced.identity == question.identity
    row = size_cluster(priced, limits(4), Goal(tokens=1e9))
    speed, cost = row.whole.tokens_per_s, row.whole.cost_per_billion_tokens
    assert cost.value == pytest.approx(2 * 0.001 * 1e9 / speed.value)
    assert cost.high == pytest.approx(2 * 0.001 * 1e9 / speed.low)
    finish = row.whole.finish_s
    assert (finish.low, finish.high) == pytest.approx((1e9 / speed.high, 1e9 / speed.low))
    assert str(cost.provenance) == "predicted"
    assert row.fewest is not None
    free = size_cluster(question, limits(4), Goal()).whole
    assert isinstance(free, Sized)
    assert (free.cost_per_billion_tokens, free.finish_s) == (None, None)


@pytest.mark.parametrize("batch", [250, 248])
def test_a_batch_that_divides_badly_is_told_with_others(batch):
    held = limits(79)
    question = question_of("8xh100-80gb", batch, {}, model="llama-3.2-1b", sequence_length=4096)
    found = awkward_batch(question, held)
    assert found.instead
    sizer = _Sizer(held, Goal(), unknown)
    speed = sizer.speed(question)
    for size in found.instead:
        other = replace(question, workload=replace(question.workload, global_batch_size=size))
        assert sizer.speed(other) * (1 - found.cost) == pytest.approx(speed, rel=0.03)
    words = str(batch_divides_badly(found))
    assert words.startswith(f"A global batch of {batch} on 8 GPUs costs {found.cost:.0%} of the")
    assert words.endswith(f"{' or '.join(map(str, found.instead))} would not.")


@pytest.mark.parametrize(("cluster", "batch"), [("8xh100-80gb", 256), ("64x8xh100-80gb", 96)])
def test_other_batches_are_not_told(cluster, batch):
    assert awkward_batch(question_of(cluster, batch), limits(79)) is None


def test_a_question_without_legal_parts_says_why():
    question = question_of(cluster="4xa100-80gb", batch=96)
    impossible = replace(question, knobs={"micro_batch_size": (7,)})
    with pytest.raises(UsageError, match="leaves no legal settings"):
        size_cluster(impossible, limits(4), Goal())
    with pytest.raises(UsageError, match=r"knobs\.tp_size: got 3"):
        question_of(knobs={"tp_size": [1, 3]})
