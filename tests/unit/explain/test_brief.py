"""The brief answer, of facts as plain values, and what would make something fit."""

from dataclasses import replace

import pytest

from tests.questions import question_about
from tests.unit.explain.test_english import LONGER, PAID, PAIR, TOO_LARGE, evaluation
from tuner.core.adapter import Adapter, AdapterMethod
from tuner.core.answer import Awkward, Reason, Suggestion
from tuner.core.cluster import parse_cluster
from tuner.core.configuration import Settings
from tuner.core.evaluation import KNOBS_PASSED, Guard
from tuner.core.measurement import Basis, Fidelity
from tuner.core.quantity import Change, Provenance, Quantity
from tuner.core.study import Limits, Study, StudyState
from tuner.core.words import sizes_text
from tuner.core.workload import Precision
from tuner.cost.memory.tensors import counts
from tuner.explain import facts
from tuner.explain.brief import brief, scale
from tuner.explain.known import how_to_measure
from tuner.explain.ways_out import ways_out
from tuner.model import published_model
from tuner.planner.sizing import Goal, size_cluster

GIB = 2**30
PREDICTED = Provenance.PREDICTED


def question(model="llama-3.1-8b", cluster="8xh100-80gb"):
    return question_about(model, cluster, tokens=4096, batch=256)


def between(value, low, high, provenance=PREDICTED):
    return Quantity(value=value, low=low, high=high, provenance=provenance)


def fact(kind, **values):
    return facts.fact(kind, "", **values)


def probed(change):
    return facts.knob_changes("knob_probed", [change])


def told(
    *found, best=None, others=(), fidelity=Fidelity.MEASURED, tokens=None, state=StudyState.DONE
):
    study = Study(id="st-1", question=question(), limits=Limits(fidelity=fidelity), state=state)
    best = best or replace(
        evaluation(),
        tokens_per_s_per_gpu=between(9000.0, 8000.0, 10_000.0, Provenance.MEASURED),
        limit_bytes=4.0 * GIB,
    )
    suggestion = Suggestion(
        study_id="st-1", state="done", workload={}, cluster={}, framework={}, best=best,
        alternatives=others, facts=tuple(fact.as_dict() for fact in found),
    )  # fmt: skip
    return brief(study, suggestion, tokens)


def test_the_answer_says_what_differs_speed_memory_and_where_that_is_from():
    found = told(tokens=1e12)
    assert found.title == "Answer"
    assert found.answer == (
        "sharding=ddp, micro_batch_size=4, gradient_accumulation_steps=1",
        "9,000 tokens/s per GPU (8,000 to 10,000), 2.00 s a step",
        "1.00 GiB needed per GPU, of 4.00 GiB",
        "measured",
        "8 GPUs: 72,000 tokens/s, MFU 47%",
        "1T tokens take 161 days (145 days to 181 days)",
    )


def test_why_names_others_by_what_differs_and_says_intervals_in_brackets():
    other = evaluation(2, settings=Settings(micro_batch_size=2))
    tied = facts.tied_with_fastest(other, GIB, Reason.LIGHTER, change=LONGER, tolerance=None)
    first, rule, tuning = told(tied, PAID).why
    assert first == (
        "Tied with micro_batch_size=2 (2 s, +25.0%, 1.00 GiB); this one needs 1.00 GiB less."
    )
    assert (
        rule == "Rule of thumb: sharding=full_shard, micro_batch_size=1, 2.5 s, +25.0% (20 to 30)."
    )
    assert tuning == "Tuning took 3.3 min, earned back after 13 min of training (11 min to 17 min)."


def test_reductions_of_an_adapter_are_said_to_cost_nothing_where_they_do():
    """With few trained parameters; not where the step takes longer, nor of whole models."""
    adapter = fact("adapter_trained", trained=41_943_040, parameters=8_072_204_288)
    same = Change(ratio=1.001, low=1.001, high=1.001)
    free = probed(replace(PAIR, value=True, step=same))
    said = "sync_each_batch costs next to nothing (true: +0.1%): 0.5% of the parameters have"
    assert told(adapter, free).why == (f"{said} gradients.",)
    assert told(adapter, probed(PAIR)).why == ()
    assert told(free).why == ()


@pytest.mark.parametrize(
    ("verdict", "said"),
    [
        ("passed", "this one was seen to train right."),
        (
            KNOBS_PASSED,
            "each of this one's knobs was seen to train right, and not each of the other's.",
        ),
    ],
)
def test_a_tie_that_goes_to_what_was_checked_says_what_was(verdict, said):
    other = evaluation(2, settings=Settings(micro_batch_size=2))
    tied = facts.tied_with_fastest(other, GIB, Reason.CHECKED, change=None, tolerance=0.01)
    best = replace(evaluation(), guard=Guard(verdict=verdict))
    assert told(tied, best=best).why[0].partition("; ")[2] == said


def test_others_as_fast_are_no_lighter():
    one, several = (fact("tied_with_others", probes=ids, more=0) for ids in ((2,), (2, 3)))
    assert told(one).why == ("As fast as #2, which is no lighter.",)
    assert told(several).why == ("As fast as #2, #3, which are no lighter.",)
    second = facts.next_best(evaluation(2, settings=Settings(micro_batch_size=2)), LONGER)
    untold = (
        "Second: micro_batch_size=2 (2 s, +25.0%, 1.00 GiB); their runs do not tell the two apart."
    )
    assert told(one, second).why == (untold,)
    assert told(several, second).why == ("As fast as #3, which is no lighter.", untold)


def test_a_second_that_is_tied_says_so_and_is_not_told_again_as_the_lighter():
    other = evaluation(2, settings=Settings(micro_batch_size=2))
    near = facts.next_best(other, 1.004, tolerance=0.01)
    lighter = fact("lighter", least=other, spared_bytes=GIB, ratio=1.004)
    assert told(near, lighter).why == (
        "Second: micro_batch_size=2 (2 s, +0.4%, 1.00 GiB); a tie, within the tolerance.",
    )
    assert "a tie, within the tolerance (1.0%)" in str(near)
    assert "tie" not in str(facts.next_best(other, 1.02, tolerance=0.01))


def test_changes_that_were_run_come_first_then_the_largest():
    expected = replace(PAIR, knob="tp_size", value=4, probes=(), step=replace(LONGER, ratio=1.9))
    elsewhere = replace(PAIR, of_answer=False)
    changes = map(probed, (elsewhere, expected, TOO_LARGE, PAIR))
    assert [row[0] for row in told(*changes).changes] == [
        "sync_each_batch=false", "tp_size=1", "tp_size=4"
    ]  # fmt: skip


def test_the_answer_names_knobs_at_their_default_that_single_changes_turn():
    assert told(probed(TOO_LARGE), probed(PAIR)).answer[0] == (
        "sharding=ddp, micro_batch_size=4, gradient_accumulation_steps=1, tp_size=1,"
        " sync_each_batch=true"
    )


def test_a_prediction_says_once_that_its_speed_is_a_ranking_with_its_error():
    best = replace(
        evaluation(),
        basis=Basis.DRY_RUN,
        step_time_s=between(10.0, 8.0, 20.0),
        allocated_bytes=between(GIB, GIB, GIB),
        tokens_per_s_per_gpu=between(9000.0, 4500.0, 11_250.0),
        limit_bytes=4.0 * GIB,
    )
    how = facts.fact("nothing_measured", "", how=how_to_measure(parse_cluster("8xh100-80gb")))
    found = told(how, best=best, fidelity=Fidelity.PREDICTED)
    assert found.title == "Answer"
    assert "predicted: memory by dry run, speed by arithmetic" in found.answer
    assert found.sure[0] == "Speeds are a ranking; absolute speed may be off (-50% to +25%)."
    for seconds, said in (
        (10.14, "A predicted lead of 1.4% was real 56 times in 100 in published pre-training"),
        (13.0, "A predicted lead of 30% was real 79 times in 100 in published pre-training"),
        (20.0, "A predicted lead of 100% was real 93 times in 100 in published pre-training"),
        (10.04, "Speeds are a ranking"),  # of which nothing is told apart
        (9.9, "Speeds are a ranking"),
    ):
        others = tuple(replace(best, step_time_s=between(s, s, s)) for s in (30.0, seconds))
        sure = told(best=best, others=others, fidelity=Fidelity.PREDICTED).sure[0]
        assert sure == f"{said}; absolute speed may be off (-50% to +25%)."
    assert found.sure[1].startswith("Not measured: ask with fidelity measured on 8xh100-80gb")
    assert "with launcher slurm or ray" in how_to_measure(parse_cluster("2x8xh100-80gb"))
    assert told(best=best).title == "Predicted, not measured"
    assert told(fidelity=Fidelity.PREDICTED).title == "Answer"  # also of what was measured
    assert told(state=StudyState.RUNNING).title == "Best so far"


def test_how_sure_says_what_more_probes_may_gain():
    gain = "3 more probes (36 s) may gain 3.0% on average, 11% or less nine times in ten"
    for is_spent, state, then in (
        (True, StudyState.DONE, "; --max-probes 3 allows 3 more"),
        (False, StudyState.DONE, "; a smaller --tolerance asks for more"),  # it stopped by that
        (False, StudyState.RUNNING, ""),
    ):
        more = {"count": 3, "wall_s": 36.0, "mean": 0.03, "most": 0.11, "is_spent": is_spent}
        assert told(fact("more_probes", **more), state=state).sure[-1] == f"{gain}{then}."
    none = fact("more_probes", count=3, wall_s=36.0, mean=0.0, most=0.0, is_spent=True)
    assert told(none).sure[-1] == "More probes are expected to gain nothing."
    assert told(fact("nothing_left")).sure[-1] == "Nothing is left to probe."


def test_other_programs_load_is_said():
    said = "about 5.9 of 8 cores while probes ran: measure again on a quiet machine."
    assert told(fact("other_load", used=5.93, cores=8)).sure[0] == f"Other programs used {said}"


def test_a_batch_that_divides_badly_is_said():
    batch = Awkward(global_batch_size=250, gpus=8, cost=0.16, instead=(248, 256))
    said = "Batch 250 costs 16% of the speed: 248 or 256 would not."
    assert said in told(facts.batch_divides_badly(batch)).sure


def test_memory_has_its_interval_in_one_unit():
    assert sizes_text(evaluation().needed_gib) == "1.00 GiB"
    some = between(GIB, 0.5 * GIB, 2.0 * GIB)
    assert sizes_text(evaluation(needed_bytes=some).needed_gib) == "1.00 GiB (0.50 to 2.00)"


def test_mfu_is_of_whole_models_on_gpus_whose_peak_is_known():
    best = evaluation(tokens_per_s_per_gpu=between(9000.0, 8000.0, 10_000.0))
    model = published_model("llama-3.1-8b")
    flops = 6 * (counts(model).parameters - model.vocab_size * 4096) + 12 * 32 * 4096 * 4096
    asked = question()
    assert scale(asked, best).mfu.value == pytest.approx(
        9000 * flops / asked.cluster.gpu.dense_bf16_flops_per_s
    )
    assert scale(question(cluster="cpu:2"), best).mfu.value is None
    assert scale(asked, best).days.value is None


# -- what would make it fit -------------------------------------------------------------------


LIMITS = Limits(fidelity=Fidelity.PREDICTED)


def options_of(asked, limits=LIMITS):
    return [one.option for one in ways_out(asked, limits)]


def test_ways_out_suffice_and_those_of_one_change_come_first():
    found = ways_out(question("llama-3.1-70b"), LIMITS)
    assert all(one.needed_bytes <= one.most_bytes <= one.limit_bytes for one in found)
    sizes = [len(one.options) for one in found]
    assert sizes == sorted(sizes)
    assert len(found) <= 6
    by_option = {one.option: one for one in found}
    assert by_option["--cluster 2x8xh100-80gb"].host_bytes == 0
    offload = by_option["--knob cpu_offload=true"]
    assert offload.settings.cpu_offload
    parameters = 70.6e9  # weights, gradients and two moments in bf16
    assert offload.host_bytes == pytest.approx(8 * parameters, rel=0.01)
    # qlora would do too, where lora does
    assert "--adapter lora" in by_option
    assert not any("qlora" in option for option in by_option)


def test_pairs_are_of_changes_that_do_not_suffice_alone():
    """As people do it: with an adapter on fewer GPUs than the whole model needs, or of shorter
    sequences."""
    assert options_of(question("llama-3.1-70b", "2xrtx-4090")) == [
        "--cluster 8x8xrtx-4090",
        "--knob cpu_offload=true",
        "--adapter qlora --cluster 8xrtx-4090",
    ]
    long = question("qwen2.5-72b", "8xa100-40gb")
    long = replace(long, workload=replace(long.workload, sequence_length=32_768))
    assert options_of(long)[-2:] == [
        "--knob cp_size=4 --adapter qlora",
        "--adapter qlora --sequence-length 8192",
    ]
    mixed = question("llama-3.1-8b", "1xh200-141gb")
    mixed = replace(mixed, workload=replace(mixed.workload, precision=Precision.BF16_MIXED))
    assert options_of(mixed) == [
        "--cluster 2xh200", "--optimizer adamw_8bit", "--precision bf16", "--adapter lora",
    ]  # fmt: skip


def test_ways_out_that_train_something_else_say_so():
    mixed = question("llama-3.1-8b", "1xh200-141gb")
    mixed = replace(mixed, workload=replace(mixed.workload, precision=Precision.BF16_MIXED))
    told = {one.option: one.as_dict()["trains"] for one in ways_out(mixed, LIMITS)}
    assert told == {
        "--cluster 2xh200": [],
        "--optimizer adamw_8bit": ["with 8-bit optimizer state"],
        "--precision bf16": ["in lower precision"],
        "--adapter lora": ["an adapter alone"],
    }
    long = question("qwen2.5-72b", "8xa100-40gb")
    long = replace(long, workload=replace(long.workload, sequence_length=32_768))
    assert ways_out(long, LIMITS)[-1].trains == {
        "--adapter qlora": "an adapter on 4-bit weights",
        "--sequence-length": "on shorter sequences",
    }


def test_accelerate_is_a_way_out_where_the_trainer_shards_no_adapter():
    asked = question_about("llama-3.1-8b", "8xrtx-4090", "trainer", tokens=8192, batch=32)
    lora = replace(asked, workload=replace(asked.workload, adapter=Adapter()))
    assert options_of(lora)[:2] == ["--framework accelerate", "--adapter qlora"]
    of_file = ways_out(lora, LIMITS, of_file=True)
    assert next(one.option for one in of_file) == "--adapter qlora"
    assert "--framework accelerate" not in options_of(asked)  # which the Trainer shards


def test_a_sequence_is_cut_to_a_quarter_unless_nothing_else_does():
    asked = question("llama-3.2-1b", "1xrtx-4090")
    qlora = Adapter(method=AdapterMethod.QLORA)
    work = replace(asked.workload, sequence_length=32_768, adapter=qlora, global_batch_size=1)
    for gib, length in ((15, 8192), (3, 512)):
        held = replace(LIMITS, memory_limit_bytes=gib * GIB)
        assert options_of(replace(asked, workload=work), held) == [f"--sequence-length {length}"]


def test_what_a_restriction_keeps_from_being_sharded_is_sharded():
    """As of a file that says DDP."""
    asked = question("llama-3.1-8b")
    work = replace(asked.workload, precision=Precision.BF16_MIXED)
    asked = replace(asked, workload=work, knobs={"sharding": ("ddp",), "tp_size": (1,)})
    found = ways_out(asked, LIMITS)
    assert found[0].option == "--knob sharding=full_shard"
    assert found[0].needed_bytes < 0.5 * found[0].limit_bytes


def test_there_are_none_of_what_only_dry_runs_know():
    """An adapter beside experts, as of a model of another type."""
    asked = question("qwen3-235b-a22b")
    assert ways_out(asked, LIMITS)
    beside = replace(asked, workload=replace(asked.workload, adapter=Adapter()))
    assert ways_out(beside, LIMITS) == ()


def test_where_no_change_suffices_the_closest_are_told():
    tight = replace(LIMITS, memory_limit_bytes=GIB)
    found = ways_out(question("llama-3.1-405b", "1xrtx-4090"), tight)
    assert 1 <= len(found) <= 3
    assert not any(one.fits for one in found)
    assert [one.needed_bytes for one in found] == sorted(one.needed_bytes for one in found)
    one = replace(found[0], needed_bytes=8 * GIB, most_bytes=10 * GIB, limit_bytes=9 * GIB)
    assert (one.fits, one.needed_text) == (False, "8.00 GiB (up to 10.0 GiB)")
    assert one.as_dict()["most_gib"] == 10.0
    assert replace(one, limit_bytes=10 * GIB).needed_text == "8.00 GiB"


def test_the_fewest_gpus_are_those_that_sizing_finds():
    asked, limits = question("llama-3.1-8b", "1xa100-40gb"), LIMITS
    asked = replace(asked, workload=replace(asked.workload, global_batch_size=24))
    whole = replace(asked, cluster=replace(asked.cluster, gpus_per_node=8))
    sized = size_cluster(whole, limits, Goal())
    assert sized.fewest.gpus == 3  # doubling would pass over it
    assert ways_out(asked, limits)[0].option == f"--cluster {sized.fewest.question.cluster.name}"
