"""The best that a study knows, with its facts; or the error that says why it knows none.

Facts of an answer on predictions say what is from dry runs, what is arithmetic, what is unknown.
"""

from collections.abc import Iterator
from dataclasses import replace
from math import inf
from operator import attrgetter

from tuner.catalog.gpus import gpu_kinds
from tuner.core.answer import Suggestion
from tuner.core.cluster import Device
from tuner.core.evaluation import Evaluation
from tuner.core.framework import NOT_PROBED, FrameworkName, same_release
from tuner.core.measurement import PROBED, Basis, Fidelity, Outcome
from tuner.core.quantity import Change, Provenance
from tuner.core.study import OPEN, Limits, Question, Study, StudyState
from tuner.core.workload import Precision
from tuner.cost.calibration import calibrated_text
from tuner.errors import (
    NothingFitsError,
    ProbeError,
    SpeedUnknownError,
    TrainsWronglyError,
    TunerError,
)
from tuner.explain import facts, predicted
from tuner.explain.brief import is_forecast
from tuner.explain.facts import AwkwardBatch, Fact
from tuner.explain.memory import memory_facts, of_workload, padding
from tuner.explain.predicted import KnobPredicted, WhatFollows
from tuner.explain.probed import (
    earlier,
    failures,
    not_suggested,
    of_other_fidelities,
    probed_facts,
    probes_against,
    rehearsed_facts,
    what_is_left,
)
from tuner.planner import Stop, next_probe, planned_answer, what_is_needed
from tuner.planner.answer import what_trained_wrongly
from tuner.planner.dry_runs import as_predicted, leading
from tuner.planner.forecast import Forecast, forecast
from tuner.planner.knowledge import Knowledge, finished, last_failure, learned
from tuner.planner.next import next_run
from tuner.planner.ranking import Choice, near
from tuner.planner.search import ExpectedMemory
from tuner.planner.similar import NEAR, past_of, studies_near
from tuner.planner.sizing import awkward_batch
from tuner.planner.spending import TRAINS_WRONGLY, spent


def answer(study: Study) -> Suggestion:
    """The answer from what is known so far, with facts and words; a pure function of the study.

    Until a probe shows a configuration that fits, the answer to be measured or emulated is what is
    predicted, and says so: ``best.basis`` is ``None`` only where memory was measured or emulated.
    ``best`` is ``None`` where nothing is known to fit, or no speed is known; the explanation says
    why.
    """
    found = planned_answer(study)
    known, predictions, choice = found.known, found.forecast, found.choice
    facts: list[Fact] = []
    if predictions is None:
        assert known is not None
        assert choice is not None
        of_dry_runs = forecast(study) if study.dry_runs else None
        facts += probed_facts(study, known, choice, of_dry_runs)
    elif known is None:
        facts += predicted_facts(predictions, choice)
        facts += rehearsed_facts(study)
        facts += grounds_of(predictions)
        facts += probes_against(study, predictions)
    else:
        # It is to be measured or emulated, and nothing that was fits.
        something = choice is not None or bool(predictions.untimed)
        facts += how_it_stands(study, known)
        facts += failures(known)
        facts += [WhatFollows(fidelity=study.limits.fidelity)] if something else []
        if something or not known.too_large:
            facts += predicted_facts(predictions, choice)
            facts += grounds_of(predictions)
        else:
            facts += not_suggested(known.wrong, study)
        facts += what_is_left(known)
        facts += of_other_fidelities(study, known, None)
    if found.suggestion.best is not None:
        batch = awkward_batch(
            study.question, study.limits, lambda _: (study.calibration, study.guards)
        )
        facts += [AwkwardBatch(batch=batch)] if batch else []
    return replace(
        found.suggestion,
        facts=tuple(fact.as_dict() for fact in facts),
        explanation=tuple(map(str, facts)),
    )


def check_limits(study: Study, limits: Limits) -> None:
    """Refuses an answer within other limits than those asked for.

    Whoever asks the same question with other limits gives the study these: what it answers then
    may not fit in the memory, or be of the fidelity, that others had asked for.
    """
    apart = limits.apart(study.limits.as_dict())
    others = [f"{name} {value}" for name, (value, _) in apart.items()]
    if others:
        raise ProbeError(
            f"study {study.id} was asked again with other limits meanwhile ({', '.join(others)}),"
            " and answers within these; ask again"
        )


def best_known(study: Study) -> Suggestion | None:
    """The answer so far; ``None`` while a first dry run is wanted, and nothing else is known."""
    found = answer(study)
    best = found.best
    # Probes of this study, or of others, stand behind it.
    is_from_probes = best is not None and (
        best.basis in (None, Basis.REHEARSED)
        or best.step_time_s.provenance is Provenance.TRANSFERRED
    )
    if study.state not in OPEN or study.dry_runs or is_from_probes:
        return found
    plan = next_probe(as_predicted(study))
    return found if isinstance(plan, Stop) else None


def require_best(study: Study, suggestion: Suggestion) -> Evaluation:
    if suggestion.best is None:
        raise why_none(study, suggestion)
    return suggestion.best


def why_none(study: Study, suggestion: Suggestion, *, shown: bool = False) -> TunerError:
    """Says why a study has no best: nothing fits, all that does trains something else, no speed is
    known, or nothing ran.

    Of one that was to be measured or emulated, that is a best of this fidelity; there may be a
    predicted one.
    """
    fidelity = study.limits.fidelity
    if fidelity not in PROBED:
        known, needed = forecast(study), what_is_needed(study)
        if wrong := known.what_is_wrong:
            return TrainsWronglyError(f"{TRAINS_WRONGLY}: {wrong}")
        why = " ".join(suggestion.explanation[:2]) or study.reason
        if shown:
            in_short = what_is_needed(study, named=False) or known.unknown
            why = in_short or " ".join(suggestion.explanation[1:2]) or why
        if needed:
            return NothingFitsError(f"nothing fits: {why}")
        if is_forecast(study, suggestion):
            why = f"{study.reason}. What is suggested is predicted."
            return ProbeError(f"study {study.id} has no {fidelity} answer: {why}")
        if suggestion.alternatives:
            return SpeedUnknownError(f"no settings are known to be the fastest: {why}")
        return ProbeError(f"study {study.id} has no answer: {why}")
    forecasts, wrong = is_forecast(study, suggestion), what_trained_wrongly(study)
    if wrong and forecasts:  # what was not tried is not known to be wrong
        seen = f"what was {fidelity} and fits trains something else"
        return TrainsWronglyError(f"{seen}: {wrong}. What is suggested is predicted.")
    if wrong or (suggestion.best is None and (wrong := forecast(study).what_is_wrong)):
        return TrainsWronglyError(f"{TRAINS_WRONGLY}: {wrong}")
    why = " ".join(map(str, how_it_stands(study, learned(study, fidelity))))
    why += " What is suggested is predicted." if forecasts else ""
    if {Outcome.OOM, Outcome.OK} & suggestion.probes.keys():
        # A study whose budget was spent first has configurations that were not tried.
        what = "nothing" if study.state is StudyState.FAILED else "nothing that was probed"
        return NothingFitsError(f"{what} fits: {why}")
    return ProbeError(f"study {study.id} has no {fidelity} answer: {why}")


# Price in speed up to which a lighter configuration is told: about twice the median error of speeds
# that nothing was fitted on (``make bench-predict``).
LITTLE_SLOWER = 0.1
# Part of the memory that it must spare.
MUCH_LIGHTER = 0.1


def predicted_facts(known: Forecast, choice: Choice | None) -> Iterator[Fact]:
    """Facts of a forecast, most important first."""
    yield from _of_best(known, choice) if choice else _of_nothing(known)
    shown = choice.best if choice else next(iter(known.untimed), None)
    if shown is not None and known.study.question.script is None:  # of which arithmetic knows none
        profiles = {key: profile for key, (profile, _) in known.profiles.items()}
        for fact in memory_facts(known.study.question, shown.settings, profiles):
            yield _with_step(known, shown, fact) if isinstance(fact, KnobPredicted) else fact
    if choice and choice.best.probes:
        if known.study.question.workload.is_traced:
            yield predicted.OfDryRunsAlone()
        yield from (predicted.OfDryRun(note=note) for note in known.notes(choice.best))
    yield from _failures(known)
    yield from not_suggested(known.wrong, known.study)


def how_it_stands(study: Study, known: Knowledge) -> Iterator[Fact]:
    """Says what the probes have shown of memory, why the study has ended, and how it goes on."""
    memory, fidelity = ExpectedMemory(known), study.limits.fidelity
    least = memory.smallest()
    if not finished(known):
        yield predicted.NothingProbed(fidelity=fidelity, is_done=False)
    elif why := memory.what_is_wrong():
        yield predicted.ProbedTrainsWrongly(fidelity=fidelity, why=why)
    elif least:
        yield predicted.NothingProbedFits(limit_bytes=known.limit_bytes)
        yield predicted.SmallestNeed(smallest=least, limit_bytes=known.limit_bytes)
    else:
        yield predicted.NothingProbed(fidelity=fidelity, is_done=True, last=last_failure(known))
    if study.state in OPEN or not study.reason:
        return
    plan = next_run(study)
    if isinstance(plan, Stop) and plan.nothing_fits and study.state is StudyState.FAILED:
        return  # which was said
    yield facts.StudyEnded(reason=study.reason)
    # A worker counts the seconds between probes too, and may end what would else go on.
    limits = study.limits
    out_of_time = study.state is StudyState.DONE and limits.wall_s and not isinstance(plan, Stop)
    if spent(known.study) or out_of_time:
        options = {"--budget": limits.wall_s, "--max-gpu-seconds": limits.device_s}
        yield predicted.GoOn(
            options=("--max-probes", *(name for name, one in options.items() if one))
        )
    elif study.state is StudyState.CANCELLED:
        yield predicted.GoOn(options=())


# -- the best ---------------------------------------------------------------------------------


def _of_best(known: Forecast, choice: Choice) -> Iterator[Fact]:
    best, fastest, limit = choice.best, choice.fastest, known.limit_bytes
    is_transferred = best.step_time_s.provenance is Provenance.TRANSFERRED
    time_from = "transferred" if is_transferred else "corrected" if best.near else "arithmetic"
    yield predicted.Predicted(
        best=best, limit_bytes=limit, basis=best.basis or Basis.ARITHMETIC, time_from=time_from
    )
    question, probes = known.study.question, known.study.probes
    could_be = question.framework.name not in NOT_PROBED and not question.unprobed
    by_choice = known.study.limits.fidelity is Fidelity.PREDICTED
    if could_be and by_choice and not any(one.request.fidelity in PROBED for one in probes):
        yield predicted.NothingMeasured(cluster=question.cluster.name)
    if question.script is None:
        yield from of_workload(question.workload, best)
    if is_transferred:
        yield predicted.TransferredFrom(
            near=best.near, factor=best.factor, at_assumed_rates=known.at_assumed_rates
        )
    if not best.fits_surely:
        yield predicted.MayNotFit(limit_bytes=limit)
    if best is not fastest:
        yield facts.TiedWithFastest(
            fastest=fastest,
            change=None,
            tolerance=known.study.limits.tolerance,
            reason=choice.reason,
            spared_bytes=fastest.expected_bytes - best.expected_bytes,
        )
    # Other micro-batches of the same layout are much alike.
    tolerance, layout = known.study.limits.tolerance, best.settings.settings_class
    for second in known.fitting:
        is_other = second.settings.settings_class != layout
        if second.seconds > best.seconds and is_other and not near(best, second, tolerance):
            yield facts.NextBest(second=second, change=second.seconds / best.seconds)
            break
    leader = leading(known)
    is_rehearsed = known.study.limits.fidelity is Fidelity.REHEARSED  # and no layout is dry-run
    if leader is not None and leader.seconds < best.seconds and not is_rehearsed:
        yield predicted.Unverified(leader=leader, ratio=leader.seconds / best.seconds)
    cheap = [
        e
        for e in known.fitting
        if e.seconds <= best.seconds * (1 + LITTLE_SLOWER)
        and e.most_bytes < best.most_bytes * (1 - MUCH_LIGHTER)
    ]
    if cheap:  # the best's own ties are told
        least = min(cheap, key=lambda e: (e.most_bytes, e.seconds))
        yield predicted.Lighter(
            least=least,
            spared_bytes=best.expected_bytes - least.expected_bytes,
            ratio=least.seconds / best.seconds,
        )


def _with_step(known: Forecast, best: Evaluation, fact: KnobPredicted) -> KnobPredicted:
    (change,) = fact.changes
    other = known.estimates.get(change.configuration) if change.configuration else None
    # Of what no estimate was made, such as another optimizer, its difference tells.
    needed = best.expected_bytes + (change.memory_bytes or 0.0)
    if other is not None:
        needed = float(other.expected_bytes)
    if needed > known.limit_bytes if other is None else other.fits is False:
        change = replace(change, fits=False, needed_bytes=needed)
        fact = replace(fact, changes=(change,))
    if other is None or max(best.seconds, other.seconds) == inf:
        return fact
    # Predictions err alike for both: the interval of each says nothing of their ratio.
    ratio = other.seconds / best.seconds
    step = Change(ratio=ratio, low=ratio, high=ratio)
    return replace(fact, changes=(replace(change, step=step, step_s=other.seconds),))


# -- nothing ----------------------------------------------------------------------------------


def _of_nothing(known: Forecast) -> Iterator[Fact]:
    legal, limit = len(known.space.legal), known.limit_bytes
    question, least = known.study.question, known.smallest
    if known.untimed:
        fit = sum(bool(e.fits) for e in known.estimates.values())
        how = "were seen, rehearsed," if known.untimed[0].is_rehearsed else "are predicted"
        yield predicted.SpeedUnknown(
            fit=fit, legal=legal, limit_bytes=limit, why=known.unknown, how=how
        )
        if question.script is None and known.study.limits.fidelity not in PROBED:
            yield _how_to_know_speed(question)
        yield predicted.LargestListed(first=known.untimed[0])
    elif known.what_is_wrong:
        fit = sum(bool(e.fits) for e in known.wrong_ones)
        yield predicted.AllTrainWrongly(fit=fit, legal=legal, limit_bytes=limit)
    elif leading(known) is None:
        yield predicted.NothingPredicted(dry_runs_failed=bool(known.refused))
    else:
        yield predicted.NothingFits(legal=legal, limit_bytes=limit)
        if least is not None:
            yield predicted.SmallestNeed(smallest=least, limit_bytes=limit)
            if question.framework.name not in NOT_PROBED:
                yield from padding(question.workload, question.cluster, least.settings)


def _how_to_know_speed(question: Question) -> predicted.HowToKnowSpeed:
    cluster = question.cluster

    def missing(precision: Precision) -> list[str]:
        """Figures that a speed needs and that are not known, by their place in a cluster's file."""
        names = [_RATE.get(precision, "gpu.dense_bf16_flops_per_s"), "gpu.memory_bytes_per_s"]
        names += ["intra_node.bytes_per_s"] if cluster.gpus_per_node > 1 else []
        names += ["inter_node.bytes_per_s"] if cluster.nodes > 1 else []
        return [name for name in names if attrgetter(name)(cluster) is None]

    mine = missing(question.workload.precision)
    others = [str(precision) for precision in Precision if not missing(precision)]
    is_of_matrices = len(mine) == 1 and mine[0].endswith("flops_per_s")
    return predicted.HowToKnowSpeed(
        cluster=cluster.name,
        is_cpu=cluster.gpu.device is Device.CPU,
        missing=tuple(mine),
        precisions=tuple(others) if is_of_matrices else (),
        is_listed=cluster.gpu.name in gpu_kinds(),
    )


_RATE = {Precision.FP32: "gpu.fp32_flops_per_s"}


# -- what stands behind the numbers -----------------------------------------------------------


def _failures(known: Forecast) -> Iterator[Fact]:
    for why, settings in known.uncovered.items():
        yield predicted.Uncovered(
            count=len(settings),
            legal=len(known.space.legal),
            shardings=tuple(sorted({str(one.sharding) for one in settings})),
            why=why,
        )
    for failed, is_accident in ((known.refused, False), (known.accidents, True)):
        if failed:
            probes = tuple(sorted(failed.values(), key=lambda probe: probe.id))
            yield facts.Failed(probes=probes, fidelity=Fidelity.PREDICTED, is_accident=is_accident)


def grounds_of(known: Forecast) -> Iterator[Fact]:
    """Tells numbers from dry runs from those that are arithmetic, and what they were made with."""
    if not known.estimates:
        return
    question, calibration = known.study.question, known.study.calibration
    if calibration is not None and question.framework.name is not FrameworkName.NANOTRON:
        yield predicted.MeasuredRates(text=calibrated_text(calibration, question.cluster))
    is_transferred = any(found.near for found in known.timed[:1])
    if not known.profiles and not any(e.is_rehearsed for e in known.estimates.values()):
        failed = bool(known.refused or known.accidents)
        why = "" if failed else known.why_no_dry_runs()
        yield predicted.NoDryRuns(failed=failed, why=why, is_transferred=is_transferred)
    elif known.profiles:
        layouts = {e.settings.settings_class for e in known.estimates.values()} | {*known.refused}
        yield predicted.DryRunsMade(
            probes=tuple(probe.id for _, probe in known.profiles.values()),
            layouts=len(layouts),
            is_transferred=is_transferred,
        )
        # Dry runs run with what is installed, whatever versions are stated.
        ran: dict[str, str] = {}
        for _, probe in known.profiles.values():
            ran |= probe.measurement.versions if probe.measurement else {}
        stated = question.framework.versions
        other = {p: ran[p] for p in stated if p in ran and not same_release(ran[p], stated[p])}
        if other:
            asked = {package: stated[package] for package in other}
            yield predicted.OtherVersions(ran=other, asked=asked)
    if is_transferred:
        past = past_of(known.study.past, calibration)
        near_ones = [e.factor for e in known.timed if e.near >= NEAR]
        yield predicted.Transferred(
            count=len(near_ones),
            timed=len(known.timed),
            low=min(near_ones),
            high=max(near_ones),
            near=NEAR,
            at_assumed_rates=known.at_assumed_rates,
            studies=earlier(question, studies_near(known.study, past)),
        )
