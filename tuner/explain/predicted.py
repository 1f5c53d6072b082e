"""Facts of an answer on predictions: what is from dry runs, what is arithmetic, what is unknown."""

from collections.abc import Iterator
from dataclasses import replace
from math import inf
from operator import attrgetter

from tuner.catalog.gpus import gpu_kinds
from tuner.core.cluster import Device
from tuner.core.evaluation import Evaluation
from tuner.core.framework import FrameworkName, same_release
from tuner.core.measurement import Basis, Fidelity
from tuner.core.quantity import Change, Provenance
from tuner.core.study import OPEN, Question, Study, StudyState
from tuner.core.workload import Precision
from tuner.cost.calibration import calibrated_text
from tuner.explain import facts
from tuner.explain.facts import Fact, KnobPredicted
from tuner.explain.memory import documents, memory_facts, padding
from tuner.explain.probed import earlier, not_suggested
from tuner.planner.dry_runs import leading
from tuner.planner.forecast import Forecast
from tuner.planner.knowledge import Knowledge, finished
from tuner.planner.next import last_failure, next_run
from tuner.planner.ranking import Choice, near
from tuner.planner.search import ExpectedMemory
from tuner.planner.similar import NEAR, past_of, studies_near
from tuner.planner.spending import Stop, spent

# Price in speed up to which a lighter configuration is told: about twice the median error of speeds
# that nothing was fitted on (``make bench-predict``).
LITTLE_SLOWER = 0.1
# Part of the memory that it must spare.
MUCH_LIGHTER = 0.1


def predicted_facts(known: Forecast, choice: Choice | None) -> Iterator[Fact]:
    """Facts of a forecast, most important first."""
    yield from _of_best(known, choice) if choice else _of_nothing(known)
    shown = choice.best if choice else next(iter(known.untimed), None)
    if shown is not None:
        profiles = {key: profile for key, (profile, _) in known.profiles.items()}
        for fact in memory_facts(known.study.question, shown.settings, profiles):
            yield _with_step(known, shown, fact) if isinstance(fact, KnobPredicted) else fact
    if choice and choice.best.probes:
        if known.study.question.workload.is_traced:
            yield facts.OfDryRunsAlone()
        yield from (facts.OfDryRun(note=note) for note in known.notes(choice.best))
    yield from _failures(known)
    yield from not_suggested(known.wrong, known.study)


def how_it_stands(study: Study, known: Knowledge) -> Iterator[Fact]:
    """Says what the probes have shown of memory, why the study has ended, and how it goes on."""
    memory, fidelity = ExpectedMemory(known), study.limits.fidelity
    least = memory.smallest()
    if not finished(known):
        yield facts.NothingProbed(fidelity=fidelity, is_done=False)
    elif why := memory.what_is_wrong():
        yield facts.ProbedTrainsWrongly(fidelity=fidelity, why=why)
    elif least:
        yield facts.NothingProbedFits(limit_bytes=known.limit_bytes)
        yield facts.SmallestNeed(smallest=least, limit_bytes=known.limit_bytes)
    else:
        yield facts.NothingProbed(fidelity=fidelity, is_done=True, last=last_failure(known))
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
        yield facts.GoOn(options=("--max-probes", *(name for name, one in options.items() if one)))
    elif study.state is StudyState.CANCELLED:
        yield facts.GoOn(options=())


# -- the best ---------------------------------------------------------------------------------


def _of_best(known: Forecast, choice: Choice) -> Iterator[Fact]:
    best, fastest, limit = choice.best, choice.fastest, known.limit_bytes
    is_transferred = best.step_time_s.provenance is Provenance.TRANSFERRED
    time_from = "transferred" if is_transferred else "corrected" if best.near else "arithmetic"
    yield facts.Predicted(
        best=best, limit_bytes=limit, basis=best.basis or Basis.ARITHMETIC, time_from=time_from
    )
    yield from documents(known.study.question.workload, best)
    if is_transferred:
        yield facts.TransferredFrom(
            near=best.near, factor=best.factor, at_assumed_rates=known.at_assumed_rates
        )
    if not best.fits_surely:
        yield facts.MayNotFit(limit_bytes=limit)
    if best is not fastest:
        yield facts.TiedWithFastest(
            fastest=fastest,
            change=None,
            tolerance=known.study.limits.tolerance,
            reason=choice.reason,
            spared_bytes=fastest.most_bytes - best.most_bytes,
        )
    # Other micro-batches of the same layout are much alike.
    tolerance, layout = known.study.limits.tolerance, best.settings.settings_class
    for second in known.fitting:
        is_other = second.settings.settings_class != layout
        if second.seconds > best.seconds and is_other and not near(best, second, tolerance):
            yield facts.NextBest(second=second, change=second.seconds / best.seconds)
            break
    leader = leading(known)
    if leader is not None and leader.seconds < best.seconds:
        yield facts.Unverified(leader=leader, ratio=leader.seconds / best.seconds)
    cheap = [
        e
        for e in known.fitting
        if e.seconds <= best.seconds * (1 + LITTLE_SLOWER)
        and e.most_bytes < best.most_bytes * (1 - MUCH_LIGHTER)
    ]
    if cheap:  # the best's own ties are told
        least = min(cheap, key=lambda e: (e.most_bytes, e.seconds))
        yield facts.Lighter(
            least=least,
            spared_bytes=best.expected_bytes - least.expected_bytes,
            ratio=least.seconds / best.seconds,
        )


def _with_step(known: Forecast, best: Evaluation, fact: KnobPredicted) -> KnobPredicted:
    (change,) = fact.changes
    other = known.estimates.get(change.configuration) if change.configuration else None
    if other is not None and other.fits is False:
        change = replace(change, fits=False, needed_bytes=float(other.expected_bytes))
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
        yield facts.SpeedUnknown(fit=fit, legal=legal, limit_bytes=limit, why=known.unknown)
        if known.study.limits.fidelity is Fidelity.PREDICTED:  # else it is to be measured anyway
            yield _how_to_know_speed(question)
        yield facts.LargestListed(first=known.untimed[0])
    elif known.what_is_wrong:
        fit = sum(bool(e.fits) for e in known.wrong_ones)
        yield facts.AllTrainWrongly(fit=fit, legal=legal, limit_bytes=limit)
    elif leading(known) is None:
        yield facts.NothingPredicted(dry_runs_failed=bool(known.refused))
    else:
        yield facts.NothingFits(legal=legal, limit_bytes=limit)
        if least is not None:
            yield facts.SmallestNeed(smallest=least, limit_bytes=limit)
            if question.framework.name is not FrameworkName.NANOTRON:
                yield from padding(question.workload, question.cluster, least.settings)


def _how_to_know_speed(question: Question) -> facts.HowToKnowSpeed:
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
    return facts.HowToKnowSpeed(
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
        yield facts.Uncovered(
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
        yield facts.MeasuredRates(text=calibrated_text(calibration, question.cluster))
    is_transferred = any(found.near for found in known.timed[:1])
    if not known.profiles:
        failed = bool(known.refused or known.accidents)
        why = "" if failed else known.why_no_dry_runs()
        yield facts.NoDryRuns(failed=failed, why=why, is_transferred=is_transferred)
    else:
        layouts = {e.settings.settings_class for e in known.estimates.values()} | {*known.refused}
        yield facts.DryRunsMade(
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
            yield facts.OtherVersions(ran=other, asked=asked)
    if is_transferred:
        past = past_of(known.study.past, calibration)
        near_ones = [e.factor for e in known.timed if e.near >= NEAR]
        yield facts.Transferred(
            count=len(near_ones),
            timed=len(known.timed),
            low=min(near_ones),
            high=max(near_ones),
            near=NEAR,
            at_assumed_rates=known.at_assumed_rates,
            studies=earlier(question, studies_near(known.study, past)),
        )
