"""Predicted studies, played through with dry runs that say what the test wants."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tuner.client.advance import measurement_of
from tuner.core.cluster import Cluster, Link, parse_cluster
from tuner.core.configuration import Checkpointing, Settings, Sharding
from tuner.core.framework import framework
from tuner.core.measurement import Basis, Fidelity, Measurement, Outcome
from tuner.core.quantity import UNKNOWN, Provenance
from tuner.core.study import (
    MOST_CLASSES,
    MOST_DRY_RUNS,
    Limits,
    Probe,
    ProbeRequest,
    ProbeState,
    Question,
    Study,
)
from tuner.core.words import describe
from tuner.core.workload import Precision, Workload
from tuner.cost.memory.device import HOPPER_WORKSPACE_BYTES
from tuner.cost.prediction import Prediction, predict
from tuner.dryrun import DryRun, plan_dry_runs
from tuner.explain.known import answer
from tuner.model import load_model
from tuner.planner import Stop, Wait, is_answered, next_probe, what_is_needed
from tuner.planner.forecast import forecast
from tuner.planner.ranking import choose_predicted, complexity
from tuner.text import size_text

GIB = 2**30
VERSIONS = {"torch": "2.13.0", "transformers": "5.23.0", "accelerate": "1.15.0"}
FAILURE = {"type": "NotImplementedError", "message": "no fake kernel", "operator": "aten::odd"}

Says = Callable[[Settings], float | Mapping[str, str]]
"""GiB at a micro-batch of one sequence, or an error, of a class of settings."""
Make = Callable[..., Study]
Play = Callable[..., tuple[Study, Stop]]


def ask(name: str = "torch", cluster: str = "8xh100-80gb", **knobs: tuple[Any, ...]) -> Question:
    stated = {} if name == "nanotron" else {"torch": "2.13.0"}
    return Question(
        workload=Workload(
            model=load_model("llama-3.1-8b"), sequence_length=4096, global_batch_size=64
        ),
        cluster=parse_cluster(cluster),
        framework=framework(name, stated, {"nanotron": "0.4"} if name == "nanotron" else {}),
        knobs=knobs,
    )


@pytest.fixture(scope="session")
def predicted(lab: SimpleNamespace) -> Callable[..., Study]:
    """A predicted study."""

    def make(question: Question | None = None, **limits: Any) -> Study:
        known = {"fidelity": Fidelity.PREDICTED, "max_probes": 3, "memory_limit_bytes": None}
        return lab.study(question or ask(), **{**known, **limits})

    return make


@pytest.fixture(scope="session")
def play(dry_run_of: Callable[..., DryRun]) -> Callable[..., tuple[Study, Stop]]:
    """Play a study through: ``play(study, says)``."""

    def run(study: Study, says: Says, most: int = 60) -> tuple[Study, Stop]:
        for _ in range(most):
            plan = next_probe(study)
            if isinstance(plan, Stop):
                return study, plan
            assert isinstance(plan, ProbeRequest)
            study = after(study, plan, says(plan.settings.settings_class), dry_run_of)
        raise AssertionError("the planner does not stop")

    return run


def after(
    study: Study,
    request: ProbeRequest,
    said: float | Mapping[str, str],
    dry_run_of: Callable[..., DryRun],
) -> Study:
    """The study after a dry run."""
    question, settings = study.question, request.settings
    if isinstance(said, Mapping):
        dry_run = dry_run_of(question, settings, error=dict(said))
    else:
        dry_run = dry_run_of(question, settings, said * GIB, said * GIB / 2)
    probe = Probe(
        id=len(study.probes) + 1,
        request=request,
        state=ProbeState.DONE,
        measurement=measurement_of(question, settings, dry_run),
        finished_at="2026-01-01T00:00:00Z",
    )
    kept = {**study.dry_runs, dry_run.key: dry_run} if dry_run.profile else study.dry_runs
    return replace(study, probes=(*study.probes, probe), dry_runs=kept)


def test_without_dry_runs_all_is_arithmetic(predicted: Make) -> None:
    found = answer(predicted())
    assert found.best is not None
    assert found.best.basis is Basis.ARITHMETIC
    assert found.best.provenance is Provenance.PREDICTED
    assert found.as_dict()["best"]["memory"]["basis"] == "arithmetic"
    assert found.as_dict()["best"]["memory"]["by_phase"]
    assert any("No dry run was made: all numbers are arithmetic" in s for s in found.explanation)
    assert found.probes == {}


def test_the_class_of_the_winner_is_dry_run(predicted: Make, play: Play) -> None:
    study, stop = play(predicted(), lambda settings: 20.0)
    assert stop.reason == "the class of the best settings was dry-run"
    found = answer(study)
    assert found.best is not None
    assert found.best.basis is Basis.DRY_RUN
    assert found.best.settings.settings_class in {
        p.request.settings.settings_class for p in study.probes
    }
    size = found.best.settings.micro_batch_size
    beside = 2 * HOPPER_WORKSPACE_BYTES / 2**30
    expected = 20 + 10 * (size - 1) + beside
    assert found.best.allocated_gib.value == pytest.approx(
        expected, abs=0.01
    )  # and what blocks add
    assert found.best.guard.versions["torch"] == "2.13.0"
    assert "dry run (probe #" in found.explanation[0]


def test_what_a_dry_run_shows_too_large_is_not_the_answer(predicted: Make, play: Play) -> None:
    def says(settings: Settings) -> float:
        checkpointed = settings.activation_checkpointing is Checkpointing.FULL
        return 20.0 if checkpointed else 500.0

    study, _ = play(predicted(max_probes=50), says)
    assert len(study.probes) > 1
    best = answer(study).best
    assert best is not None
    assert best.basis is Basis.DRY_RUN
    assert best.settings.activation_checkpointing is Checkpointing.FULL


def test_a_spent_budget_answers_with_what_was_dry_run(predicted: Make, play: Play) -> None:
    """Only settings of the first class are small, and only in small micro-batches."""
    first = next_probe(predicted())
    assert isinstance(first, ProbeRequest)

    def says(settings: Settings) -> float:
        return 60.0 if settings == first.settings.settings_class else 500.0

    study, stop = play(predicted(max_probes=2), says)
    best = answer(study).best
    assert best is not None
    assert best.basis is Basis.DRY_RUN
    assert len(study.probes) <= 2
    assert "spent" in stop.reason or "was dry-run" in stop.reason


def test_the_last_dry_run_is_spent_on_what_fits_for_sure(predicted: Make, play: Play) -> None:
    """The fastest-looking may all be too large; an answer from a dry run is wanted all the same."""
    first = next_probe(predicted())
    assert isinstance(first, ProbeRequest)
    tight = forecast(predicted()).estimates[first.settings].expected_bytes + 1
    asked = predicted(memory_limit_bytes=tight)
    safe = {e.settings.settings_class for e in forecast(asked).fitting}

    def says(settings: Settings) -> float:
        return 5.0 if settings in safe else 500.0

    study, _ = play(asked, says)
    best = answer(study).best
    assert best is not None
    assert best.basis is Basis.DRY_RUN
    assert len(study.probes) <= 3


def test_three_failed_classes_are_the_end(predicted: Make, play: Play) -> None:
    study, stop = play(predicted(max_probes=20), lambda settings: FAILURE)
    assert len(study.probes) == MOST_CLASSES
    assert not stop.nothing_fits
    found = answer(study)
    assert found.best is None
    assert found.probes == {"invalid": 3}
    assert "The dry runs failed" in found.explanation[0]
    assert any("aten::odd" in sentence for sentence in found.explanation)
    assert what_is_needed(study) == ""


def test_failures_of_an_earlier_asking_do_not_spend_this_one(predicted: Make, play: Play) -> None:
    first, _ = play(predicted(max_probes=1), lambda settings: FAILURE)
    assert len(first.probes) == 1
    assert answer(first).best is None
    assert answer(first).alternatives == ()
    again, _ = play(replace(first, probes_before=1), lambda settings: 20.0)
    assert answer(again).best is not None


def requests_of(study: Study) -> int:
    """Dry runs that a study's probes are."""
    settings = [probe.request.settings for probe in study.probes]
    found = (study.question.workload, study.question.cluster, study.question.framework)
    return sum(len(plan_dry_runs(*found, one, VERSIONS).requests) for one in settings)


@pytest.mark.parametrize("knobs", [{}, {"tp_size": (2, 4)}, {"tp_size": (1,)}])
@pytest.mark.parametrize("says", [lambda settings: 500.0, lambda settings: FAILURE])
def test_dry_runs_are_counted_and_not_only_classes(
    predicted: Make,
    play: Play,
    knobs: dict[str, Any],
    says: Says,
) -> None:
    study, stop = play(predicted(ask(**knobs), max_dry_runs=MOST_DRY_RUNS), says)
    assert 0 < requests_of(study) <= MOST_DRY_RUNS
    assert len(study.probes) == (1 if knobs.get("tp_size") == (2, 4) else 3)
    if knobs.get("tp_size") == (2, 4):
        assert stop.reason == (
            "the budget of 6 dry runs is spent but for 2, and the best settings take 4"
        )


def test_probes_that_are_asked_for_are_not_counted_as_dry_runs(predicted: Make, play: Play) -> None:
    study, _ = play(predicted(ask(tp_size=(2, 4)), max_probes=5), lambda settings: 500.0)
    assert len(study.probes) == 5
    assert requests_of(study) == 20


def test_a_failed_class_is_left_out(predicted: Make, play: Play) -> None:
    first = next_probe(predicted())
    assert isinstance(first, ProbeRequest)

    def says(settings: Settings) -> float | Mapping[str, str]:
        return FAILURE if settings == first.settings.settings_class else 20.0

    study, _ = play(predicted(), says)
    found = answer(study)
    closed = first.settings.settings_class
    assert found.best is not None
    assert closed not in {c.settings.settings_class for c in (found.best, *found.alternatives)}
    assert any("Unknown, because their dry run failed" in s for s in found.explanation)


def test_nothing_fits_by_far_is_seen_by_one_dry_run_of_the_smallest(
    predicted: Make, play: Play
) -> None:
    study, stop = play(predicted(memory_limit_bytes=2**20), lambda settings: 2.0)
    (probe,) = study.probes
    assert stop.reason == "no settings are predicted to fit"
    assert "the limit is 1.00 MiB" in stop.nothing_fits
    assert f"{describe(probe.request.settings)} (probe #1)" in stop.nothing_fits
    assert answer(study).best is None
    assert what_is_needed(study) == stop.nothing_fits
    assert what_is_needed(study, named=False).count("one device; the limit is") == 1


def test_the_smallest_need_is_named_whatever_was_dry_run_for_an_earlier_question(
    predicted: Make, play: Play
) -> None:
    """With all memory the fastest is dry-run, with little the smallest, which is another."""
    first, _ = play(predicted(), lambda settings: 40.0)
    again = predicted(memory_limit_bytes=2**30)
    again = replace(again, probes=first.probes, dry_runs=first.dry_runs, probes_before=1)
    before = forecast(again).smallest
    assert before is not None
    assert not before.is_dry_run
    assert f"{describe(before.settings)} (by arithmetic)" in what_is_needed(again)
    study, stop = play(again, lambda settings: 2.0)
    probe = study.probes[-1]
    assert probe.request.settings == before.settings
    assert f"{describe(before.settings)} (probe #{probe.id})" in stop.nothing_fits
    sizes = [e.expected_bytes for e in forecast(study).estimates.values()]
    assert size_text(min(sizes)) in stop.nothing_fits


def test_what_a_dry_run_shows_larger_than_others_is_not_named_as_the_smallest(
    predicted: Make, play: Play
) -> None:
    study, stop = play(predicted(memory_limit_bytes=2**20), lambda settings: 500.0)
    assert 1 < len(study.probes) <= 3
    assert "(by arithmetic)" in stop.nothing_fits


def test_of_needs_that_are_alike_the_one_that_was_dry_run_is_named(
    predicted: Make, play: Play
) -> None:
    """Settings with and without tp_recompute_allgather need nearly the same."""
    asked = predicted(memory_limit_bytes=2**20)
    first = forecast(asked).smallest
    assert first is not None
    allocated = (first.allocated_bytes.value or 0) / GIB
    study, stop = play(asked, lambda settings: allocated * 1.002)
    assert len(study.probes) == 1
    assert "(probe #1)" in stop.nothing_fits


def test_nothing_fits_by_far_is_no_reason_to_try_again(predicted: Make, play: Play) -> None:
    study, stop = play(predicted(memory_limit_bytes=2**20), lambda settings: FAILURE)
    assert len(study.probes) == 1
    assert "(by arithmetic)" in stop.nothing_fits


def test_nothing_fits_by_a_hair_is_looked_into(predicted: Make, play: Play) -> None:
    least = forecast(predicted()).smallest
    assert least is not None
    asked = predicted(memory_limit_bytes=int(least.expected_bytes * 0.995))
    assert not forecast(asked).is_hopeless
    study, stop = play(asked, lambda settings: 500.0)
    assert 1 < len(study.probes) <= 3
    assert stop.nothing_fits


def test_padding_of_experts_is_named_where_nothing_fits(predicted: Make) -> None:
    mixtral = Workload(
        model=load_model("mixtral-8x7b"), sequence_length=2048, global_batch_size=512
    )
    question = replace(ask(cluster="8x8xa100-40gb"), workload=mixtral)
    study = predicted(replace(question, knobs={"sharding": ("full_shard",), "tp_size": (1,)}))
    found = answer(study)
    assert found.best is None
    assert any("room for 1 of 8" in sentence for sentence in found.explanation)


NO_RATES = Cluster.from_dict(
    {"nodes": 1, "gpus_per_node": 8, "gpu": {"name": "odd", "memory_bytes": 80 * GIB}}
)


def test_where_no_speed_is_known_what_fits_is_listed(predicted: Make, play: Play) -> None:
    study, stop = play(predicted(replace(ask(), cluster=NO_RATES)), lambda settings: 40.0)
    assert stop.reason.startswith("settings fit, but none is known to be the fastest: time is")
    assert not stop.nothing_fits
    assert len(study.probes) == 1
    found = answer(study)
    assert found.best is None
    assert found.provenance is Provenance.UNKNOWN
    assert found.pareto == ()
    first = found.alternatives[0]
    assert first.basis is Basis.DRY_RUN
    assert first.provenance is Provenance.UNKNOWN
    assert first.as_dict()["fits"] is True
    assert first.as_dict()["step_time_s"]["value"] is None
    assert what_is_needed(study) == ""


def test_of_each_class_the_largest_micro_batch_that_fits_is_listed(predicted: Make) -> None:
    known = forecast(predicted(replace(ask(), cluster=NO_RATES)))
    classes = [e.settings.settings_class for e in known.untimed]
    assert len(set(classes)) == len(classes)
    assert [complexity(one) for one in classes] == sorted(map(complexity, classes))
    for found in known.untimed:
        size, key = found.settings.micro_batch_size, found.settings.settings_class
        same = (e for e in known.estimates.values() if e.settings.settings_class == key)
        assert all(e.settings.micro_batch_size <= size for e in same if e.fits)


def test_what_is_missing_for_a_speed_is_named(predicted: Make) -> None:
    said = answer(predicted(replace(ask(), cluster=NO_RATES))).explanation
    assert "which of them is the fastest is not known: time is unknown: the matrix rate" in said[0]
    assert (
        "states gpu.dense_bf16_flops_per_s, gpu.memory_bytes_per_s, intra_node.bytes_per_s;"
        in said[1]
    )
    assert "the simplest class first: sharding=" in said[2]
    assert "--precision" not in said[1]
    some = replace(NO_RATES.gpu, dense_bf16_flops_per_s=1e14)
    two = replace(NO_RATES, gpu=some, nodes=2)
    said = answer(predicted(replace(ask(), cluster=two))).explanation
    assert (
        "states gpu.memory_bytes_per_s, intra_node.bytes_per_s, inter_node.bytes_per_s;" in said[1]
    )


def test_a_precision_whose_rate_is_known_is_named(predicted: Make) -> None:
    """The catalogue knows that a V100 has no bf16 matrix units: there is nothing to state."""
    said = answer(predicted(ask(cluster="8xv100-32gb"))).explanation
    assert said[1] == (
        "Speeds are predicted with --precision fp32, whose matrix rate is known; or measure them"
        " there: --fidelity measured."
    )
    gpu = replace(NO_RATES.gpu, fp32_flops_per_s=1e13, memory_bytes_per_s=1e12)
    own = replace(NO_RATES, gpu=gpu, intra_node=Link(bytes_per_s=1e11))
    said = answer(predicted(replace(ask(), cluster=own))).explanation
    assert "is known, or where --cluster is a .toml file that states gpu.dense_bf16" in said[1]
    fp32 = replace(ask(cluster="8xv100-32gb").workload, precision=Precision.FP32)
    asked = predicted(replace(ask(cluster="8xv100-32gb"), workload=fp32), memory_limit_bytes=2**40)
    assert answer(asked).best is not None


def test_stating_what_is_missing_gives_an_answer(predicted: Make) -> None:
    gpu = replace(NO_RATES.gpu, dense_bf16_flops_per_s=1e14, memory_bytes_per_s=1e12)
    stated = replace(NO_RATES, gpu=gpu, intra_node=Link(bytes_per_s=1e11))
    assert answer(predicted(replace(ask(), cluster=stated))).best is not None


def test_cpu_ranks_are_to_be_measured(predicted: Make) -> None:
    question = replace(ask(cluster="cpu:2"), workload=replace(ask().workload, global_batch_size=2))
    study = predicted(question, memory_limit_bytes=2**50)
    found = answer(study)
    assert found.best is None
    assert found.alternatives
    assert "--fidelity measured" in found.explanation[1]


def test_nothing_fits_at_an_unknown_speed_either(predicted: Make, play: Play) -> None:
    asked = predicted(replace(ask(), cluster=NO_RATES), memory_limit_bytes=2**20)
    study, stop = play(asked, lambda settings: 2.0)
    assert len(study.probes) == 1
    assert stop.nothing_fits
    assert answer(study).alternatives == ()


def test_nanotron_is_arithmetic(predicted: Make) -> None:
    study = predicted(ask("nanotron"))
    stop = next_probe(study)
    assert isinstance(stop, Stop)
    assert "nanotron" in stop.reason
    found = answer(study)
    assert found.best is not None
    assert found.best.basis is Basis.ARITHMETIC
    assert any("nanotron's step is not one" in sentence for sentence in found.explanation)


def test_what_is_underway_is_waited_for(predicted: Make) -> None:
    study = predicted()
    request = next_probe(study)
    assert isinstance(request, ProbeRequest)
    queued = Probe(id=1, request=request, state=ProbeState.QUEUED)
    assert next_probe(replace(study, probes=(queued,))) == Wait()
    measured = replace(request, fidelity=Fidelity.MEASURED)
    other = replace(study, probes=(replace(queued, request=measured),))
    assert next_probe(other) == request


def test_the_answer_is_the_same_whatever_the_order_of_probes(predicted: Make, play: Play) -> None:
    study, _ = play(predicted(max_probes=5), lambda settings: 70.0)
    turned = replace(study, probes=tuple(reversed(study.probes)))
    assert answer(turned) == answer(study)


def test_other_versions_are_said(predicted: Make, play: Play) -> None:
    question = replace(ask(), framework=framework("torch", {"torch": "2.12.0"}, {}))
    study, _ = play(predicted(question), lambda settings: 20.0)
    said = [s for s in answer(study).explanation if "2.12.0" in s]
    assert len(said) == 1
    assert "made with torch 2.13.0" in said[0]
    same, _ = play(predicted(), lambda settings: 20.0)
    assert not any("instead of" in sentence for sentence in answer(same).explanation)


def test_a_dry_run_that_is_not_kept_any_more_is_made_again(predicted: Make, play: Play) -> None:
    study, _ = play(predicted(), lambda settings: 20.0)
    again = next_probe(replace(study, dry_runs={}, probes_before=len(study.probes)))
    assert isinstance(again, ProbeRequest)
    assert again.repetition == 1
    assert again.settings == study.probes[0].request.settings


def test_each_fidelity_mentions_the_other(
    lab: SimpleNamespace,
    predicted: Make,
    play: Play,
) -> None:
    study, _ = play(predicted(), lambda settings: 20.0)
    best = answer(study).best
    assert best is not None
    count = best.settings.gradient_accumulation_steps
    measured = lab.probe(99, best.settings, lab.ok(2.0, 21 * GIB, count=count))
    both = replace(study, probes=(*study.probes, measured))
    said = answer(both)
    assert said.best is not None
    assert said.best.settings == best.settings
    assert said.best.allocated_gib == best.allocated_gib
    assert said.best.step_time_s.value == pytest.approx(2.0)  # as measured
    assert said.best.step_time_s.provenance is Provenance.PREDICTED
    assert said.probes == answer(study).probes
    assert any("1 probe of this question measured too" in s for s in said.explanation)
    assert any("took 2 s and needed 21.0 GiB (probe #99)" in s for s in said.explanation)
    asked_to_measure = replace(both, limits=Limits())
    found = answer(asked_to_measure)
    assert found.best is not None
    assert found.best.basis is None
    assert found.probes == {"ok": 1}
    assert any("dry-run too" in sentence for sentence in found.explanation)
    assert any("a dry run predicts" in sentence for sentence in found.explanation)


def test_a_measured_answer_is_untouched_by_fidelity(lab: SimpleNamespace) -> None:
    settings = forecast(lab.study(ask(), memory_limit_bytes=None)).timed[0].settings
    count = settings.gradient_accumulation_steps
    study = lab.study(ask(), probes=[lab.probe(1, settings, lab.ok(1.0, GIB, count=count))])
    assert "basis" not in answer(study).as_dict()["best"]["memory"]
    assert study.at(Fidelity.MEASURED) is study


def test_a_failed_dry_run_of_another_asking_stays_closed_but_an_accident_does_not(
    predicted: Make,
) -> None:
    request = next_probe(predicted())
    assert isinstance(request, ProbeRequest)
    key = request.settings.settings_class
    accidents = (Outcome.WORKER_LOST, Outcome.CRASHED, Outcome.TIMEOUT)
    for outcome, closed in ((Outcome.INVALID, True), *((one, False) for one in accidents)):
        study = replace(predicted(), probes=(ended(request, outcome),))
        found, later = forecast(study), forecast(replace(study, probes_before=1))
        assert (key in found.refused, key in found.accidents) == (closed, not closed)
        assert (key in later.refused, key in later.accidents) == (closed, False)
        assert (request.settings in found.estimates) is not closed


def ended(request: ProbeRequest, outcome: Outcome, **known: Any) -> Probe:
    """A first probe that did not end well."""
    measurement = Measurement(outcome=outcome, **known)
    return Probe(id=1, request=request, state=ProbeState.DONE, measurement=measurement)


def test_too_much_cpu_time_that_is_kept_is_no_accident(predicted: Make) -> None:
    request = next_probe(predicted())
    assert isinstance(request, ProbeRequest)
    probe = ended(request, Outcome.TIMEOUT, detail="TimeLimit", dry_run="key")
    study = replace(predicted(), probes=(probe,))
    assert request.settings not in forecast(study).estimates
    assert next_probe(replace(study, probes_before=1)) != next_probe(study)


def test_an_accident_leaves_arithmetic_and_is_tried_again_by_the_next_asking(
    predicted: Make, play: Play
) -> None:
    busy = {"type": "Crashed", "message": "ended by signal 9"}
    study, stop = play(predicted(), lambda settings: busy)
    (probe,) = study.probes
    assert probe.measurement is not None
    assert (probe.measurement.outcome, probe.measurement.detail) == (
        Outcome.CRASHED,
        "ended by signal 9",
    )
    assert stop.reason == (
        "the best settings cannot be dry-run: the dry run of their class ended as crashed"
        " (ended by signal 9)"
    )
    found = answer(study)
    assert found.best == answer(predicted()).best
    assert any("had an accident" in s and "ended by signal 9" in s for s in found.explanation)
    assert "No dry run succeeded: all numbers are arithmetic." in found.explanation
    assert not is_answered(study)
    later = replace(study, probes_before=1)
    again = next_probe(later)
    assert isinstance(again, ProbeRequest)
    assert (again.settings, again.repetition) == (probe.request.settings, 1)
    settled, _ = play(later, lambda settings: 20.0)
    assert is_answered(settled)


def test_an_accident_does_not_settle_what_may_not_fit(predicted: Make, play: Play) -> None:
    """Where the upper end of the memory is above the limit, a class that fits for sure leads."""
    first = next_probe(predicted())
    assert isinstance(first, ProbeRequest)
    tight = forecast(predicted()).estimates[first.settings].expected_bytes + 1
    busy = {"type": "TimeLimit", "message": "the machine is busy"}
    asked = predicted(memory_limit_bytes=tight)
    study, _ = play(asked, lambda s: busy if s == first.settings.settings_class else 5.0)
    best = answer(study).best
    assert best is not None
    assert best.settings.settings_class != first.settings.settings_class
    assert best.basis is Basis.DRY_RUN


def sharded_is_unknown(monkeypatch: pytest.MonkeyPatch, *shardings: Sharding) -> None:
    """As of settings that the cost model does not cover."""
    nothing = dict.fromkeys(
        ("allocated_bytes", "needed_bytes", "step_time_s", "tokens_per_s_per_gpu"), UNKNOWN
    )

    def predicted(*given: Any, **options: Any) -> Prediction:
        found = predict(*given, **options)
        unknown = given[-1].sharding in shardings
        return replace(found, fits=False, why="odd", **nothing) if unknown else found

    monkeypatch.setattr("tuner.planner.forecast.predict", predicted)


def test_settings_that_are_not_covered_are_left_out_and_said(
    predicted: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    sharded_is_unknown(monkeypatch, Sharding.FULL_SHARD)
    study = predicted(memory_limit_bytes=77 * GIB + 1)  # of its own: arithmetic is kept by it
    known = forecast(study)
    assert {e.settings.sharding for e in known.estimates.values()} == {"ddp", "shard_grad_op"}
    request = next_probe(study)
    assert isinstance(request, ProbeRequest)
    assert request.settings.sharding != Sharding.FULL_SHARD
    found = answer(study)
    assert found.best is not None
    left = sum(s.sharding is Sharding.FULL_SHARD for s in known.space.legal)
    said = f"Unknown of {left} of the {found.legal} legal settings, with full_shard: odd."
    assert said in found.explanation


def test_where_no_settings_are_covered_nothing_is_predicted(
    predicted: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    sharded_is_unknown(monkeypatch, *Sharding)
    study = predicted(memory_limit_bytes=77 * GIB + 2)
    stop = next_probe(study)
    assert isinstance(stop, Stop)
    assert stop.reason == "nothing is predicted of any settings: odd"
    found = answer(study)
    assert (found.best, found.alternatives, stop.nothing_fits) == (None, (), "")
    assert found.explanation[0] == "Nothing is predicted of any settings."
    assert "odd." in found.explanation[1]


def test_ties_go_to_less_memory_then_to_simplicity() -> None:
    def settings(seconds: float, needed: int, **knobs: Any) -> SimpleNamespace:
        return SimpleNamespace(settings=Settings(**knobs), seconds=seconds, most_bytes=needed)

    fast = settings(1.0, 100, tp_size=2)
    light = settings(1.005, 50)
    simple = settings(1.001, 100)
    slow = settings(1.5, 10)
    choice = choose_predicted([fast, light, slow], 0.01)
    assert choice is not None
    assert (choice.best, choice.fastest) == (light, fast)
    assert choose_predicted([fast, simple, slow], 0.01).best is simple  # type: ignore[union-attr]
    assert choose_predicted([], 0.01) is None


def test_probes_of_one_fidelity_keep_their_place_in_the_askings(
    lab: SimpleNamespace, predicted: Make
) -> None:
    dry = ProbeRequest(settings=Settings(), fidelity=Fidelity.PREDICTED)
    probes = [lab.probe(n, Settings(micro_batch_size=n), lab.ok(1.0, GIB)) for n in (1, 2, 4)]
    probes[1] = replace(probes[1], request=dry)
    study = replace(predicted(), probes=tuple(probes), probes_before=2)
    assert [p.id for p in study.at(Fidelity.MEASURED).probes] == [1, 4]
    assert study.at(Fidelity.MEASURED).probes_before == 1
    assert [p.id for p in study.at(Fidelity.PREDICTED).probes] == [2]
    assert study.at(Fidelity.PREDICTED).probes_before == 1
