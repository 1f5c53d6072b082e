"""Facts of an answer on probes: why this one, what was second, what failed, what is left."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import log
from statistics import median

from tuner.core.cluster import Device
from tuner.core.configuration import Settings
from tuner.core.evaluation import Evaluation
from tuner.core.measurement import PROBED, Fidelity, Outcome
from tuner.core.study import OPEN, Probe, Question, Study
from tuner.core.words import MOST_NAMED
from tuner.explain import facts, predicted
from tuner.explain.facts import Fact
from tuner.explain.knobs import knob_facts
from tuner.explain.memory import of_workload, on_host
from tuner.guard.faults import Wrong
from tuner.planner.forecast import Forecast
from tuner.planner.knowledge import Knowledge, finished, learned, outcome_of
from tuner.planner.outlook import Outlook
from tuner.planner.ranking import LIGHTER, Choice, complexity
from tuner.planner.spending import cost, devices_held
from tuner.planner.step_times import change_between, change_of, compared, fair
from tuner.planner.timing import SHORT_COUNTS
from tuner.search.gain import HOPEFUL, gain_of_more
from tuner.space import enumerate_space

# Probes whose gain is told.
MORE = 3
_TOLD_APART = frozenset({Outcome.OK, Outcome.OOM, Outcome.STOPPED_EARLY})


def probed_facts(
    whole: Study, known: Knowledge, choice: Choice, predictions: Forecast | None
) -> Iterator[Fact]:
    """All facts of an answer that was probed, most important first."""
    outlook = Outlook(known)
    yield from _of_best(known, choice)
    yield from knob_facts(known, choice.best, outlook)
    yield from _paid(known, choice.best, outlook)
    yield from failures(known)
    yield from not_suggested(known.wrong, known.study)
    yield from what_is_left(known, outlook)
    yield from of_other_fidelities(whole, known, predictions)


def _of_best(known: Knowledge, choice: Choice) -> Iterator[Fact]:
    timed = fair(known)
    best, fastest = timed[choice.best.settings], timed[choice.fastest.settings]
    yield facts.Chosen(best=best, limit_bytes=known.limit_bytes)
    question, last = known.study.question, best.probes[-1].measurement
    if question.workload.model.is_named:
        yield from on_host(question.workload, question.cluster, best.settings)
    if question.script is None:  # whose batches are its own
        yield from of_workload(question.workload, best)
    if (script := question.script) is not None and last is not None:
        yield facts.ScriptRan(
            path=script.path,
            launch=str(script.launch),
            ranks=question.cluster.world_size,
            memory=last.hardware.get("memory", "as the script's process has it"),
        )
    tied = [f for f in choice.tied if f is not choice.best]
    if choice.best is not choice.fastest:
        change = change_between(best, fastest)
        yield facts.TiedWithFastest(
            fastest=fastest,
            change=change,
            tolerance=known.study.limits.tolerance if change.is_clear else None,
            reason=choice.reason,
            spared_bytes=fastest.expected_bytes - best.expected_bytes,
        )
    elif tied:
        yield facts.TiedWithOthers(
            probes=tuple(f.probes[0].id for f in tied[:MOST_NAMED]),
            more=max(0, len(tied) - MOST_NAMED),
            lighter=LIGHTER,
        )
    second = next((f for f in known.fitting if f is not choice.best), None)
    if second is None:
        yield facts.NoOther()
    elif second is not choice.fastest:  # which was named as what the answer is tied with
        second = timed[second.settings]
        yield facts.NextBest(second=second, change=change_between(best, second))
    count = best.settings.gradient_accumulation_steps
    steps = {p.id: p.measurement.step_times_s for p in best.probes if p.measurement}
    if best.extrapolated:
        ran = tuple(sorted({n for found in steps.values() for n in found}))
        yield facts.Extrapolated(ran=ran, count=count, probes=best.probe_ids)
    elif count > max(SHORT_COUNTS) and len(best.probes) > 1:
        run_out = tuple(number for number, found in steps.items() if found.get(count))
        yield facts.RunOut(count=count, probes=run_out)
    hardware = [p.measurement.hardware for p in best.probes if p.measurement]
    for conf in dict.fromkeys(one["allocator_conf"] for one in hardware if "allocator_conf" in one):
        yield facts.AllocatorConfigured(conf=conf)


def rule_of_thumb(question: Question, outlook: Outlook) -> Settings | None:
    """Picks what one would launch without tuning, of what is known or expected to fit.

    The least model parallelism, then the fewest knobs off their default, then the largest
    micro-batch. ``None`` when nothing is expected to fit.
    """
    return next(filter(outlook.is_expected_to_fit, _plainest_first(question)), None)


# A study is answered again after every probe, in the same space.
@lru_cache(maxsize=8)
def _plainest_first(question: Question) -> tuple[Settings, ...]:
    def order(one: Settings) -> tuple[int, int, int, str]:
        return one.model_parallel_size, complexity(question, one), -one.micro_batch_size, str(one)

    return tuple(sorted(enumerate_space(question).legal, key=order))


def _paid(known: Knowledge, best: Evaluation, outlook: Outlook) -> Iterator[Fact]:
    spent, rule = cost(known.study), rule_of_thumb(known.study.question, outlook)
    if rule is None or not spent.wall_s:
        return
    timed, change, grounds = compared(known), None, None
    found = timed.get(rule)
    rule_s = found.seconds if found else best.seconds
    if rule != best.settings and found is not None:
        change = change_between(timed[best.settings], found)
    elif rule != best.settings:
        believed, grounds = outlook.seconds(rule), outlook.grounds
        assert believed.value is not None
        change, rule_s = change_of(best.step_time_s, believed), believed.value
    yield facts.TuningPaid(
        wall_s=spent.wall_s,
        device_s=spent.device_s,
        step_s=best.seconds,
        rule=rule,
        rule_s=rule_s,
        change=change,
        probes=found.probe_ids if found else (),
        grounds=grounds,
        ended_early=found is not None and found.ended_early,
    )


# -- what failed, and what is left ------------------------------------------------------------


def failures(known: Knowledge) -> Iterator[Fact]:
    done = finished(known)
    if oom := _ended_as(done, {Outcome.OOM}):
        yield facts.RanOutOfMemory(probes=oom)
    if early := _ended_as(done, {Outcome.STOPPED_EARLY}):
        slow = (known.slow.get(probe.request.settings) for probe in early)
        yield facts.EndedEarly(
            probes=early, seconds=tuple(one.step_time_s.value if one else None for one in slow)
        )
    if failed := _ended_as(done, set(Outcome) - _TOLD_APART):
        yield facts.Failed(probes=failed, fidelity=known.study.limits.fidelity)


def _ended_as(probes: Iterable[Probe], outcomes: set[Outcome]) -> tuple[Probe, ...]:
    return tuple(probe for probe in probes if outcome_of(probe) in outcomes)


def not_suggested(found: Mapping[Settings, Wrong], study: Study) -> Iterator[Fact]:
    """One fact for each reason for which configurations are not suggested."""
    for why in dict.fromkeys(one.why for one in found.values()):
        ones = [settings for settings, one in found.items() if one.why == why]
        outcome = found[ones[0]].outcome
        yield facts.NotSuggested(
            count=len(ones),
            example=ones[0],
            why=why,
            probes=tuple(p.id for p in study.probes if outcome_of(p) is outcome),
        )


def what_is_left(known: Knowledge, outlook: Outlook | None = None) -> Iterator[Fact]:
    """Says what more probes may gain, and how much was seen."""
    done = finished(known)
    if done:
        outlook = outlook or Outlook(known)
        yield from _more_probes(known, outlook, done)
        if outlook.others:
            yield facts.OtherStudies(studies=earlier(known.study.question, outlook.others))
    yield facts.Coverage(
        probed=sum(1 for one in known.tried if one in known.space.places),
        legal=len(known.space.legal),
        probes_done=len(done),
    )


def _more_probes(known: Knowledge, outlook: Outlook, done: Sequence[Probe]) -> Iterator[Fact]:
    search, study = outlook.search, known.study
    left = int((search.allowed & (search.belief.fits >= HOPEFUL)).sum())
    proposed = search.expect() if left else None
    if proposed is None:
        yield facts.NothingLeft()
        return
    if not known.fitting:
        yield facts.Untried(count=left, grounds=outlook.grounds, next=proposed.settings)
        return
    count, fastest = min(MORE, left), log(known.fitting[0].seconds)
    mean, most = gain_of_more(search.belief, fastest, search.allowed, count)
    yield facts.MoreProbes(
        count=count,
        wall_s=count * median(p.measurement.wall_s for p in done if p.measurement),
        devices=devices_held(study),
        is_cpu=study.question.cluster.gpu.device is Device.CPU,
        mean=mean,
        most=most,
        grounds=outlook.grounds,
        next=proposed.settings,
    )
    if study.state not in OPEN and study.reason:
        yield facts.StudyEnded(reason=study.reason)


# -- other probes, and other studies ----------------------------------------------------------


def also_probed(study: Study, fidelity: Fidelity) -> Iterator[Fact]:
    if count := sum(1 for p in study.at(fidelity).probes if p.measurement):
        yield facts.AlsoProbed(fidelity=fidelity, count=count)


def rehearsed_facts(study: Study) -> Iterator[Fact]:
    """What was rehearsed of a study, whose other figures are predicted."""
    known = learned(study, Fidelity.REHEARSED)
    if not (done := finished(known)):
        return
    outside = [found.outside_bytes for found in known.findings.values()]
    yield predicted.Rehearsed(
        count=len(done),
        probes=tuple(probe.id for probe in done),
        world_size=study.question.cluster.world_size,
        outside_bytes=max(outside, default=0),
    )
    if (script := study.question.script) is not None and study.question.workload.has_arithmetic:
        yield predicted.TimesOfBuiltIn(path=script.path, model=study.question.workload.model.name)
    yield from failures(known)


def probes_against(study: Study, known: Forecast) -> Iterator[Fact]:
    """For a predicted answer: what was measured or emulated, and how predictions compare."""
    for fidelity in PROBED:
        counted = list(also_probed(study, fidelity))
        yield from counted
        fitting = learned(study, fidelity).fitting if counted else ()
        found = known.estimates.get(fitting[0].settings) if fitting else None
        if found is not None:
            # As it was predicted before it was corrected.
            value = found.step_time_s.value
            yield facts.ProbesAgainstPrediction(
                found=fitting[0],
                predicted_s=None if value is None else value / found.factor,
                predicted_bytes=found.expected_bytes,
            )


def of_other_fidelities(
    study: Study, known: Knowledge, predictions: Forecast | None
) -> Iterator[Fact]:
    """For a measured or emulated answer: when it was, and what the other one, and dry runs, say."""
    mine = study.limits.fidelity
    if known.findings and (days := days_of(study.at(mine))):
        versions = study.question.framework.versions
        yield facts.RanOn(fidelity=mine, days=days, versions=versions)
    for fidelity in (*PROBED, Fidelity.REHEARSED):
        if fidelity is not mine:
            yield from also_probed(study, fidelity)
    dry_runs = _ended_as(study.at(Fidelity.PREDICTED).probes, {Outcome.OK})
    if not dry_runs:
        return
    yield facts.AlsoDryRun(count=len(dry_runs))
    fitting = known.fitting if predictions else ()
    found = predictions.estimates.get(fitting[0].settings) if predictions and fitting else None
    if found is not None and found.probes:
        yield facts.DryRunAgainstProbes(
            predicted=found, needed_bytes=fitting[0].most_bytes, fidelity=mine
        )


def days_of(study: Study) -> tuple[str, ...]:
    return tuple(sorted({p.finished_at[:10] for p in study.probes if p.finished_at}))


def earlier(question: Question, studies: Iterable[Study]) -> tuple[facts.EarlierStudy, ...]:
    mine, found = question.workload, []
    for study in studies:
        workload, ran = study.question.workload, []
        for fidelity in PROBED:
            probes = study.at(fidelity).probes
            steps = {
                p.request.settings for p in probes if p.measurement and p.measurement.step_times_s
            }
            ran += [(len(steps), fidelity)] if steps else []
        is_other = workload.reduce_dtype is not mine.reduce_dtype
        found.append(
            facts.EarlierStudy(
                id=study.id,
                model=workload.model.name,
                cluster=study.question.cluster.name,
                global_batch_size=workload.global_batch_size,
                sequence_length=workload.sequence_length,
                optimizer="" if workload.optimizer is mine.optimizer else str(workload.optimizer),
                reduce_dtype=str(workload.reduce_dtype) if is_other else "",
                ran=tuple(ran),
                days=days_of(study),
                versions=study.question.framework.versions,
            )
        )
    return tuple(found)
