"""Predicted studies, played through with dry runs that say what the test wants."""

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.questions import question_about
from tests.records import VERSIONS
from tuner.catalog.gpus import matmul_share
from tuner.catalog.versions import version_table
from tuner.client.advance import measurement_of
from tuner.core.cluster import Cluster
from tuner.core.configuration import Checkpointing, Settings
from tuner.core.framework import framework
from tuner.core.measurement import Basis, Fidelity, Measurement, Outcome
from tuner.core.quantity import Provenance
from tuner.core.study import MOST_DRY_RUNS, MOST_LAYOUTS, Limits, Probe, ProbeRequest, ProbeState
from tuner.core.words import describe
from tuner.cost.constants import default_costs
from tuner.cost.memory.device import HOPPER_WORKSPACE_BYTES
from tuner.dryrun import plan_dry_runs
from tuner.explain.known import answer
from tuner.model import read_model_config
from tuner.planner import Stop, is_answered, next_probe, what_is_needed
from tuner.planner.forecast import forecast
from tuner.planner.ranking import choose_predicted
from tuner.results.what_if import Predictor

GIB = 2**30
FAILURE = {"type": "NotImplementedError", "message": "no fake kernel", "operator": "aten::odd"}


def ask(name="torch", cluster="8xh100-80gb", **knobs):
    stated = {} if name == "nanotron" else {"torch": "2.13.0"}
    stack = framework(name, stated, {"nanotron": "0.4"} if name == "nanotron" else {})
    return question_about("llama-3.1-8b", cluster, stack, tokens=4096, batch=64, knobs=knobs)


@pytest.fixture(scope="session")
def predicted(lab):
    """A predicted study."""

    def make(question=None, **limits):
        known = {"fidelity": Fidelity.PREDICTED, "max_probes": 3, "memory_limit_bytes": None}
        return lab.study(question or ask(), **{**known, **limits})

    return make


@pytest.fixture(scope="session")
def play(dry_run_of):
    """Play a study through: ``play(study, says)``."""

    def run(study, says, most=60):
        for _ in range(most):
            plan = next_probe(study)
            if isinstance(plan, Stop):
                return study, plan
            study = after(study, plan, says(plan.settings.layout), dry_run_of)
        raise AssertionError("the planner does not stop")

    return run


def after(study, request, said, dry_run_of):
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


def test_the_layout_of_the_winner_is_dry_run(predicted, play):
    study, stop = play(predicted(), lambda settings: 20.0)
    assert stop.reason == "the memory of the best settings was checked by a dry run"
    found = answer(study)
    assert found.best.basis is Basis.DRY_RUN
    assert found.best.settings.layout in {p.request.settings.layout for p in study.probes}
    size = found.best.settings.micro_batch_size
    beside = 2 * HOPPER_WORKSPACE_BYTES / 2**30
    expected = 20 + 10 * (size - 1) + beside
    assert found.best.allocated_gib.value == pytest.approx(
        expected, abs=0.01
    )  # and what blocks add
    assert found.best.guard.versions["torch"] == "2.13.0"
    assert "from dry run #" in found.explanation[0]
    (measures,) = (text for text in found.explanation if "was measured" in text)
    assert "ask with fidelity measured on 8xh100-80gb, or start" in measures
    other = answer(play(predicted(ask(name="nanotron")), lambda settings: 20.0)[0])
    assert not any("was measured" in text for text in other.explanation)  # it is not probed


def test_what_a_dry_run_shows_too_large_is_not_the_answer(predicted, play):
    def says(settings):
        checkpointed = settings.activation_checkpointing is Checkpointing.FULL
        return 20.0 if checkpointed else 500.0

    study, _ = play(predicted(max_probes=50), says)
    assert len(study.probes) > 1
    best = answer(study).best
    assert best.basis is Basis.DRY_RUN
    assert best.settings.activation_checkpointing is Checkpointing.FULL


def test_three_failed_classes_are_the_end(predicted, play):
    study, stop = play(predicted(max_probes=20), lambda settings: FAILURE)
    assert len(study.probes) == MOST_LAYOUTS
    assert not stop.nothing_fits
    found = answer(study)
    assert found.best is None
    assert found.probes == {"invalid": 3}
    assert "The dry runs failed" in found.explanation[0]
    assert any("aten::odd" in sentence for sentence in found.explanation)
    assert what_is_needed(study) == ""


def requests_of(study):
    """Dry runs that a study's probes are."""
    settings = [probe.request.settings for probe in study.probes]
    found = (study.question.workload, study.question.cluster, study.question.framework)
    return sum(len(plan_dry_runs(*found, one, VERSIONS).requests) for one in settings)


@pytest.mark.parametrize("knobs", [{}, {"tp_size": (2, 4)}, {"tp_size": (1,)}])
@pytest.mark.parametrize("says", [lambda settings: 500.0, lambda settings: FAILURE])
def test_dry_runs_are_counted_and_not_only_classes(predicted, play, knobs, says):
    study, stop = play(predicted(ask(**knobs), max_dry_runs=MOST_DRY_RUNS), says)
    assert 0 < requests_of(study) <= MOST_DRY_RUNS
    assert len(study.probes) == (1 if knobs.get("tp_size") == (2, 4) else 3)
    if knobs.get("tp_size") == (2, 4):
        assert stop.reason == (
            "the budget of 6 dry runs is spent but for 2, and the best settings take 4"
        )


def test_nothing_fits_by_far_is_seen_by_one_dry_run_of_the_smallest(predicted, play):
    study, stop = play(predicted(memory_limit_bytes=2**20), lambda settings: 2.0)
    (probe,) = study.probes
    assert stop.reason == "no settings are predicted to fit"
    assert "the limit is 1.00 MiB" in stop.nothing_fits
    assert f"{describe(probe.request.settings)} (dry run #1)" in stop.nothing_fits
    assert answer(study).best is None
    assert what_is_needed(study) == stop.nothing_fits
    assert what_is_needed(study, named=False).count("one device; the limit is") == 1


def test_what_fits_but_at_the_upper_end_may_run_out_of_memory(predicted, play):
    one = ask(sharding=("full_shard",), tp_size=(1,), micro_batch_size=(1,), fused_loss=(False,))
    one = replace(one, knobs={**one.knobs, "activation_checkpointing": ("full",)})
    needed = answer(play(predicted(one), lambda settings: 20.0)[0]).best.needed_bytes
    limit = int((needed.value + needed.high) / 2)
    study, stop = play(predicted(one, memory_limit_bytes=limit), lambda settings: 20.0)
    ends = " to ".join(f"{end / GIB:.1f}" for end in (needed.low, needed.high))
    assert stop.reason == "no settings are predicted to fit for sure"
    assert f"predicted is {needed.value / GIB:.1f} GiB ({ends}) on one device" in stop.nothing_fits
    assert "it may run out of memory, for the limit is" in stop.nothing_fits
    found = answer(study)
    assert found.best is None
    assert found.explanation[0].endswith("GiB for sure.")
    assert stop.nothing_fits[1:] in found.explanation[1]


NO_RATES = Cluster.from_dict(
    {"nodes": 1, "gpus_per_node": 8, "gpu": {"name": "odd", "memory_bytes": 80 * GIB}}
)


def test_where_no_speed_is_known_what_fits_is_listed(predicted, play):
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


def ask_of_a_traced_model():
    model = read_model_config({"model_type": "opt", "num_hidden_layers": 24}, name="opt")
    question = ask()
    return replace(question, workload=replace(question.workload, model=model))


def test_a_model_without_arithmetic_is_known_by_its_dry_runs_alone(predicted, play):
    question = ask_of_a_traced_model()
    study, stop = play(predicted(question, max_probes=4), lambda settings: 20.0)
    assert "budget" in stop.reason
    tried = {probe.request.settings.layout for probe in study.probes}
    assert len(tried) == 4
    known = forecast(study)
    assert {one.layout for one in known.estimates} == tried
    assert all(found.basis is Basis.DRY_RUN for found in known.estimates.values())
    found = answer(study)
    assert {one.settings.layout for one in (found.best, *found.alternatives)} <= tried
    # what is computed again counts, and so do rates: 3e12 FLOPs in each of 24 layers
    assert found.best.settings.activation_checkpointing is Checkpointing.NONE
    rate = question.cluster.gpu.dense_bf16_flops_per_s * matmul_share("h100-80gb")
    least = question.workload.global_batch_size / 8 * 24 * 3e12 / rate
    assert found.best.step_time_s.value == pytest.approx(least, rel=0.01)
    width = default_costs().time.unfitted
    assert found.best.step_time_s.low == pytest.approx(width.low * found.best.step_time_s.value)
    said = [one for one in found.explanation if "no arithmetic knows this model type" in one]
    assert [one.partition(",")[0] for one in said] == ["Memory"]  # once, of the whole answer
    notes = Predictor(study).what_if(found.best.settings).notes
    assert sum("no arithmetic knows" in one for one in notes) == 1
    study, stop = play(predicted(question, max_probes=2), lambda settings: FAILURE)
    assert "aten::odd" in stop.reason
    assert answer(study).best is None


def test_a_later_request_dry_runs_a_layout_of_such_a_model_again_after_a_timeout(predicted):
    study = predicted(ask_of_a_traced_model())
    request = next_probe(study)
    late = ended(request, Outcome.TIMEOUT, detail="TimeLimit", dry_run="key")
    again = next_probe(replace(study, probes=(late,), probes_before=1))
    assert (again.settings, again.repetition) == (request.settings, 1)


def test_the_answer_is_the_same_whatever_the_order_of_probes(predicted, play):
    study, _ = play(predicted(max_probes=5), lambda settings: 70.0)
    turned = replace(study, probes=tuple(reversed(study.probes)))
    assert answer(turned) == answer(study)


def test_a_dry_run_that_is_not_kept_any_more_is_made_again(predicted, play):
    study, _ = play(predicted(), lambda settings: 20.0)
    again = next_probe(replace(study, dry_runs={}, probes_before=len(study.probes)))
    assert again.repetition == 1
    assert again.settings == study.probes[0].request.settings


def test_each_fidelity_mentions_the_other(lab, predicted, play):
    study, _ = play(predicted(), lambda settings: 20.0)
    best = answer(study).best
    count = best.settings.gradient_accumulation_steps
    measured = lab.probe(99, best.settings, lab.ok(2.0, 21 * GIB, count=count))
    both = replace(study, probes=(*study.probes, measured))
    said = answer(both)
    assert said.best.settings == best.settings
    assert said.best.allocated_gib == best.allocated_gib
    assert said.best.step_time_s.value == pytest.approx(2.0)  # as measured
    assert said.best.step_time_s.provenance is Provenance.PREDICTED
    assert said.probes == answer(study).probes
    assert any("1 probe of this question measured too" in s for s in said.explanation)
    assert any("took 2 s and needed 21.0 GiB (probe #99)" in s for s in said.explanation)
    asked_to_measure = replace(both, limits=Limits())
    found = answer(asked_to_measure)
    assert found.best.basis is None
    assert found.probes == {"ok": 1}
    assert any("dry-run too" in sentence for sentence in found.explanation)
    assert any("a dry run predicts" in sentence for sentence in found.explanation)


def test_a_failed_dry_run_of_another_request_stays_closed_but_an_accident_does_not(predicted):
    request = next_probe(predicted())
    key = request.settings.layout
    accidents = (Outcome.WORKER_LOST, Outcome.CRASHED, Outcome.TIMEOUT)
    for outcome, closed in ((Outcome.INVALID, True), *((one, False) for one in accidents)):
        study = replace(predicted(), probes=(ended(request, outcome),))
        found, later = forecast(study), forecast(replace(study, probes_before=1))
        assert (key in found.refused, key in found.accidents) == (closed, not closed)
        assert (key in later.refused, key in later.accidents) == (closed, False)
        assert (request.settings in found.estimates) is not closed


def ended(request, outcome, **known):
    """A first probe that did not end well."""
    measurement = Measurement(outcome=outcome, **known)
    return Probe(id=1, request=request, state=ProbeState.DONE, measurement=measurement)


def test_too_much_cpu_time_that_is_kept_is_no_accident(predicted):
    request = next_probe(predicted())
    probe = ended(request, Outcome.TIMEOUT, detail="TimeLimit", dry_run="key")
    study = replace(predicted(), probes=(probe,))
    assert request.settings not in forecast(study).estimates
    assert next_probe(replace(study, probes_before=1)) != next_probe(study)


def test_an_accident_leaves_arithmetic_and_is_tried_again_by_the_next_request(predicted, play):
    busy = {"type": "Crashed", "message": "ended by signal 9"}
    study, stop = play(predicted(), lambda settings: busy)
    (probe,) = study.probes
    assert (probe.measurement.outcome, probe.measurement.detail) == (
        Outcome.CRASHED,
        "ended by signal 9",
    )
    assert stop.reason == (
        "the best settings cannot be dry-run: the dry run of their layout ended as crashed"
        " (ended by signal 9)"
    )
    found = answer(study)
    assert found.best == answer(predicted()).best
    assert any("had an accident" in s and "ended by signal 9" in s for s in found.explanation)
    assert "No dry run succeeded: all numbers are arithmetic." in found.explanation
    assert not is_answered(study)
    later = replace(study, probes_before=1)
    again = next_probe(later)
    assert (again.settings, again.repetition) == (probe.request.settings, 1)
    settled, _ = play(later, lambda settings: 20.0)
    assert is_answered(settled)


def finding(seconds, needed, **knobs):
    return SimpleNamespace(
        settings=Settings(**knobs), seconds=seconds, most_bytes=needed, limit_bytes=1000
    )


def test_ties_go_to_less_memory_then_to_simplicity():
    asked = ask()
    fast = finding(1.0, 100, tp_size=2)
    light = finding(1.005, 50, tp_size=4)
    simple = finding(1.001, 100)
    slow = finding(1.5, 10)
    choice = choose_predicted(asked, [fast, light, slow], 0.01)
    assert (choice.best, choice.fastest) == (light, fast)
    # a hundredth of the limit is what counts, among the light ones too
    assert choose_predicted(asked, [fast, finding(1.005, 91, tp_size=4)], 0.01).best is fast
    as_light = finding(1.002, 59)
    assert choose_predicted(asked, [fast, as_light, light], 0.01).best is as_light
    assert choose_predicted(asked, [fast, simple, slow], 0.01).best is simple
    assert choose_predicted(asked, [], 0.01) is None


@pytest.mark.parametrize(
    ("name", "cluster", "each"),
    [
        ("torch", "8xh100-80gb", True),  # FSDP2 and DDP reduce unless they are told not to
        ("accelerate", "8xh100-80gb", False),
        ("trainer", "8xh100-80gb", False),
        ("accelerate", "1xh100-80gb", True),  # nobody to reduce with: it is what it is
    ],
)
def test_ties_in_all_go_to_what_the_framework_does_by_itself(name, cluster, each):
    table = version_table()
    stated = {one: table.packages[one].newest for one in table.frameworks[name].required}
    asked = replace(ask(cluster=cluster), framework=framework(name, stated, {}))
    two = [
        finding(1.0, 100, gradient_accumulation_steps=4, sync_each_batch=sync)
        for sync in (True, False)
    ]
    for pool in (two, two[::-1]):
        best = choose_predicted(asked, pool, 0.01).best
        assert best.settings.sync_each_batch is each


def test_probes_of_one_fidelity_keep_their_place_in_the_requests(lab, predicted):
    dry = ProbeRequest(settings=Settings(), fidelity=Fidelity.PREDICTED)
    probes = [lab.probe(n, Settings(micro_batch_size=n), lab.ok(1.0, GIB)) for n in (1, 2, 4)]
    probes[1] = replace(probes[1], request=dry)
    study = replace(predicted(), probes=tuple(probes), probes_before=2)
    assert [p.id for p in study.at(Fidelity.MEASURED).probes] == [1, 4]
    assert study.at(Fidelity.MEASURED).probes_before == 1
    assert [p.id for p in study.at(Fidelity.PREDICTED).probes] == [2]
    assert study.at(Fidelity.PREDICTED).probes_before == 1
