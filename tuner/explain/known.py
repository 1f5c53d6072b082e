"""The best that a study knows, with its facts; or the error that says why it knows none.

Facts of an answer on predictions say what is from dry runs, what is arithmetic, what is unknown.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from operator import attrgetter

from tuner.catalog.gpus import gpu_kinds
from tuner.core.answer import Suggestion
from tuner.core.cluster import Cluster, Device
from tuner.core.evaluation import Evaluation
from tuner.core.framework import NOT_PROBED, FrameworkName, same_release
from tuner.core.measurement import PROBED, Basis, Fidelity, Outcome
from tuner.core.quantity import Change, Provenance
from tuner.core.study import OPEN, Limits, Question, Study, StudyState
from tuner.core.words import (
    change_text,
    describe,
    interval_text,
    listed,
    need_text,
    probes_text,
    seconds_text,
)
from tuner.core.workload import Precision
from tuner.cost.calibration import calibrated_text
from tuner.cost.prediction import EIGHT_BIT_NOTE, OF_TRACES
from tuner.errors import (
    NothingFitsError,
    ProbeError,
    SpeedUnknownError,
    TrainsWronglyError,
    TunerError,
)
from tuner.explain import facts
from tuner.explain.brief import is_forecast
from tuner.explain.english import arithmetic_text, basis_text, few_text, most_text, sentence
from tuner.explain.facts import Fact, KnobChange, fact
from tuner.explain.memory import memory_facts, of_workload, padding
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
from tuner.planner.dry_runs import as_predicted, leading
from tuner.planner.forecast import Forecast, forecast
from tuner.planner.knowledge import Knowledge, finished, last_failure, learned
from tuner.planner.next import next_run
from tuner.planner.ranking import Choice
from tuner.planner.search import ExpectedMemory
from tuner.planner.similar import NEAR, past_of, studies_near
from tuner.planner.sizing import awkward_batch
from tuner.planner.spending import TRAINS_WRONGLY, spent
from tuner.space.rules import why_only_ddp
from tuner.text import size_text


def answer(study: Study) -> Suggestion:
    """The answer from what is known so far, with facts and words; a pure function of the study.

    Until a probe shows a configuration that fits, the answer to be measured or emulated is what is
    predicted, and says so: ``best.basis`` is ``None`` only where memory was measured or emulated.
    ``best`` is ``None`` where nothing is known to fit, or no speed is known; the explanation says
    why.
    """
    found = planned_answer(study)
    known, predictions, choice = found.known, found.forecast, found.choice
    told: list[Fact] = []
    if predictions is None:
        assert known is not None
        assert choice is not None
        of_dry_runs = forecast(study) if study.dry_runs else None
        told += probed_facts(study, known, choice, of_dry_runs)
    elif known is None:
        told += predicted_facts(predictions, choice)
        told += rehearsed_facts(study)
        told += grounds_of(predictions)
        told += probes_against(study, predictions)
    else:
        # It is to be measured or emulated, and nothing that was fits.
        something = choice is not None or bool(predictions.untimed)
        told += how_it_stands(study, known)
        told += failures(known)
        if something:
            asked = study.limits.fidelity
            text = f"What follows is predicted, until something is {asked} that fits."
            told.append(fact("what_follows", text, fidelity=asked))
        if something or not known.too_large:
            told += predicted_facts(predictions, choice)
            told += grounds_of(predictions)
        else:
            told += not_suggested(known.wrong, study)
        told += what_is_left(known)
        told += of_other_fidelities(study, known, None)
    if found.suggestion.best is not None:
        batch = awkward_batch(
            study.question, study.limits, lambda _: (study.calibration, study.guards)
        )
        told += [facts.batch_divides_badly(batch)] if batch else []
    return replace(
        found.suggestion,
        facts=tuple(one.as_dict() for one in told),
        explanation=tuple(map(str, told)),
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


def is_unanswered(study: Study, suggestion: Suggestion) -> bool:
    """True of a study at its end that has no answer of the fidelity that was asked for."""
    return study.state not in OPEN and (suggestion.best is None or is_forecast(study, suggestion))


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
            return _nothing_fits(study, f"nothing fits: {why}")
        if is_forecast(study, suggestion):
            why = f"{study.reason}. What is suggested is predicted."
            return ProbeError(f"study {study.id} has no {fidelity} answer: {why}")
        if suggestion.alternatives:
            return SpeedUnknownError(f"no settings are known to be the fastest: {why}")
        return ProbeError(f"study {study.id} has no answer: {why}")
    forecasts, seen = is_forecast(study, suggestion), learned(study)
    wrong = "" if seen.fitting else ExpectedMemory(seen).what_is_wrong()
    if wrong and forecasts:  # what was not tried is not known to be wrong
        what = f"what was {fidelity} and fits trains something else"
        return TrainsWronglyError(f"{what}: {wrong}. What is suggested is predicted.")
    if wrong or (suggestion.best is None and (wrong := forecast(study).what_is_wrong)):
        return TrainsWronglyError(f"{TRAINS_WRONGLY}: {wrong}")
    why = " ".join(map(str, how_it_stands(study, seen)))
    why += " What is suggested is predicted." if forecasts else ""
    if {Outcome.OOM, Outcome.OK} & suggestion.probes.keys():
        # A study whose budget was spent first has configurations that were not tried.
        what = "nothing" if study.state is StudyState.FAILED else "nothing that was probed"
        return _nothing_fits(study, f"{what} fits: {why}")
    return ProbeError(f"study {study.id} has no {fidelity} answer: {why}")


def _nothing_fits(study: Study, text: str) -> NothingFitsError:
    """With the reason where nothing could be sharded, which would have made it fit."""
    why = why_only_ddp(study.question)
    return NothingFitsError(f"{text.removesuffix('.')}; {why}" if why else text)


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
        timed = partial(_with_step, known, shown)
        yield from memory_facts(known.study.question, shown.settings, profiles, timed)
    if shown is not None and known.study.question.in_eight_bits:
        yield fact("in_eight_bits", sentence(EIGHT_BIT_NOTE))
    if choice and choice.best.probes:
        if known.study.question.workload.is_traced:
            yield fact("of_dry_runs_alone", sentence(OF_TRACES))
        for note in known.notes(choice.best):
            yield fact("of_dry_run", f"Of its dry run: {note}.", note=note)
    yield from _failures(known)
    yield from not_suggested(known.wrong, known.study)


def how_it_stands(study: Study, known: Knowledge) -> Iterator[Fact]:
    """Says what the probes have shown of memory, why the study has ended, and how it goes on."""
    memory, fidelity = ExpectedMemory(known), study.limits.fidelity
    least = memory.smallest()
    if not finished(known):
        text = f"Nothing was {fidelity} yet: no probe is done."
        yield fact("nothing_probed", text, fidelity=fidelity, is_done=False, last="")
    elif why := memory.what_is_wrong():
        text = f"What was {fidelity} and fits trains something else: {why}."
        yield fact("probed_trains_wrongly", text, fidelity=fidelity, why=why)
    elif least:
        limit = known.limit_bytes
        text = f"None of the settings probed was seen to fit in {size_text(limit)}."
        yield fact("nothing_probed_fits", text, limit_bytes=limit)
        yield _smallest_need(least, limit)
    else:
        last = last_failure(known)
        text = f"No probe has given a result{last and f'; the last: {last}'}."
        yield fact("nothing_probed", text, fidelity=fidelity, is_done=True, last=last)
    if study.state in OPEN or not study.reason:
        return
    plan = next_run(study)
    if isinstance(plan, Stop) and plan.nothing_fits and study.state is StudyState.FAILED:
        return  # which was said
    yield facts.study_ended(study.reason)
    # A worker counts the seconds between probes too, and may end what would else go on.
    limits = study.limits
    out_of_time = study.state is StudyState.DONE and limits.wall_s and not isinstance(plan, Stop)
    if spent(known.study) or out_of_time:
        budgets = {"--max-probes": "probes"}
        budgets |= {"--budget": "time"} if limits.wall_s else {}
        budgets |= {"--max-gpu-seconds": "device time"} if limits.device_s else {}
        of = listed(tuple(budgets.values()))
        text = f"Ask again with a larger budget of {of}: it goes on where it ended."
        yield fact("go_on", text, options=tuple(budgets))
    elif study.state is StudyState.CANCELLED:
        yield fact("go_on", "Ask again, and it goes on where it ended.", options=())


def _smallest_need(least: Evaluation, limit_bytes: int) -> Fact:
    text = sentence(need_text(least, limit_bytes))
    return fact("smallest_need", text, smallest=least, limit_bytes=limit_bytes)


# -- the best ---------------------------------------------------------------------------------


def how_to_measure(cluster: Cluster) -> str:
    """How a question about a cluster is asked so that it is measured."""
    launcher = ", with launcher slurm or ray" if cluster.nodes > 1 else ""
    return f"ask with fidelity measured on {cluster.name}, or start a worker there{launcher}"


def _of_best(known: Forecast, choice: Choice) -> Iterator[Fact]:
    best, fastest, limit = choice.best, choice.fastest, known.limit_bytes
    question, tolerance = known.study.question, known.study.limits.tolerance
    is_transferred = best.step_time_s.provenance is Provenance.TRANSFERRED
    time_from = "transferred" if is_transferred else "corrected" if best.near else "arithmetic"
    yield _predicted(best, limit, time_from)
    could_be = question.framework.name not in NOT_PROBED and not question.unprobed
    by_choice = known.study.limits.fidelity is Fidelity.PREDICTED
    probed = any(one.request.fidelity in PROBED for one in known.study.probes)
    if could_be and by_choice and not probed:
        how = how_to_measure(question.cluster)
        yield fact("nothing_measured", f"Nothing was measured: {how}.", how=how)
    if question.script is None:
        yield from of_workload(question.workload, best)
    if is_transferred:
        arithmetic = arithmetic_text(known.at_assumed_rates)
        yield fact(
            "transferred_from",
            "No step of this question was timed. The most similar settings that other studies ran"
            f" are {best.near:.0%} alike, workload included; by these studies the step takes"
            f" {best.factor:.2f} times what {arithmetic} says.",
            near=best.near,
            factor=best.factor,
            at_assumed_rates=known.at_assumed_rates,
        )
    if not best.fits_surely:
        yield fact(
            "may_not_fit",
            "At the upper end of its memory's interval it would not fit: nothing is predicted to"
            f" fit in {size_text(limit)} for sure.",
            limit_bytes=limit,
        )
    if best is not fastest:
        spared = fastest.expected_bytes - best.expected_bytes
        reason = choice.reason
        yield facts.tied_with_fastest(fastest, spared, reason, change=None, tolerance=tolerance)
    slower = (one for one in known.fitting if one.seconds > best.seconds)
    if second := next(slower, None):
        yield facts.next_best(second, second.seconds / best.seconds, tolerance=tolerance)
    leader = leading(known)
    is_rehearsed = known.study.limits.fidelity is Fidelity.REHEARSED  # and no layout is dry-run
    if leader is not None and leader.seconds < best.seconds and not is_rehearsed:
        ratio = leader.seconds / best.seconds
        yield fact(
            "unverified",
            f"By arithmetic {describe(leader.settings)} would be faster, with"
            f" {seconds_text(leader.seconds)} ({change_text(ratio)}) and {most_text(leader)}, but"
            " its layout was not dry-run; more probes allow that.",
            leader=leader,
            ratio=ratio,
        )
    cheap = [
        e
        for e in known.fitting
        if e.seconds <= best.seconds * (1 + LITTLE_SLOWER)
        and e.most_bytes < best.most_bytes * (1 - MUCH_LIGHTER)
    ]
    if cheap:  # the best's own ties are told
        least = min(cheap, key=lambda e: (e.most_bytes, e.seconds))
        spared, ratio = best.expected_bytes - least.expected_bytes, least.seconds / best.seconds
        yield fact(
            "lighter",
            f"{describe(least.settings)} needs {size_text(spared)} less, {basis_text(least)}, and"
            f" is predicted to take {seconds_text(least.seconds)} ({change_text(ratio)}):"
            " predictions err alike for all settings, so only a tie within the tolerance is decided"
            " by memory.",
            least=least,
            spared_bytes=spared,
            ratio=ratio,
        )


# What a time is from, by what corrects it.
TIMES_FROM = {
    "arithmetic": "arithmetic",
    "transferred": "transferred: arithmetic, corrected by what other studies measured",
    "corrected": "arithmetic, corrected by what other studies measured of less similar settings",
}


def _predicted(best: Evaluation, limit: int, time_from: str) -> Fact:
    time, memory = TIMES_FROM[time_from], basis_text(best) if best.probes else "arithmetic"
    text = (
        f"{describe(best.settings)} is predicted to take {seconds_text(best.seconds)} for an"
        f" optimizer step ({interval_text(best.step_time_s)})"
    )
    needs = f"{most_text(best)} of {size_text(limit)}"
    if best.is_rehearsed:
        text += f", which is {time}; rehearsed, it needed {needs}"
        text += f" (probe {probes_text(best.probe_ids)})."
    else:
        basis = f"its memory is {memory}, its time is {time}"
        basis = "both are arithmetic" if time == memory else basis
        text += f" and to need {needs} on one device; {basis}."
    basis = best.basis or Basis.ARITHMETIC
    return fact("predicted", text, best=best, limit_bytes=limit, basis=basis, time_from=time_from)


def _with_step(known: Forecast, best: Evaluation, change: KnobChange) -> KnobChange:
    """The change with what it does to the step, and whether it fits."""
    other = known.estimates.get(change.configuration) if change.configuration else None
    # Of what no estimate was made, such as another optimizer, its difference tells.
    needed = best.expected_bytes + (change.memory_bytes or 0.0)
    if other is not None:
        needed = float(other.expected_bytes)
    if needed > known.limit_bytes if other is None else other.fits is False:
        change = replace(change, fits=False, needed_bytes=needed)
    if other is None or max(best.seconds, other.seconds) == inf:
        return change
    # Predictions err alike for both: the interval of each says nothing of their ratio.
    ratio = other.seconds / best.seconds
    step = Change(ratio=ratio, low=ratio, high=ratio)
    return replace(change, step=step, step_s=other.seconds)


# -- nothing ----------------------------------------------------------------------------------


def _of_nothing(known: Forecast) -> Iterator[Fact]:
    legal, limit = len(known.space.legal), known.limit_bytes
    question, least = known.study.question, known.smallest
    if known.untimed:
        fit = sum(bool(e.fits) for e in known.estimates.values())
        how = "were seen, rehearsed," if known.untimed[0].is_rehearsed else "are predicted"
        yield fact(
            "speed_unknown",
            f"{fit} of the {legal} legal settings {how} to fit in {size_text(limit)}, but which of"
            f" them is the fastest is not known: {known.unknown}.",
            fit=fit,
            legal=legal,
            limit_bytes=limit,
            why=known.unknown,
            how=how,
        )
        if question.script is None and known.study.limits.fidelity not in PROBED:
            yield _how_to_know_speed(question)
        first = known.untimed[0]
        yield fact(
            "largest_listed",
            "Of each layout the largest micro-batch that fits is listed, the simplest layout first:"
            f" {describe(first.settings)} needs {most_text(first)}, {basis_text(first)}.",
            first=first,
        )
    elif known.what_is_wrong:
        fit = sum(bool(e.fits) for e in known.wrong_ones)
        text = f"{fit} of the {legal} legal settings are predicted to fit in {size_text(limit)},"
        text += " and all of them train something else."
        yield fact("all_train_wrongly", text, fit=fit, legal=legal, limit_bytes=limit)
    elif leading(known) is None:
        text = "Nothing is predicted of any settings."
        if known.refused:
            text = "The dry runs failed, so nothing is known of what any settings need."
        yield fact("nothing_predicted", text, dry_runs_failed=bool(known.refused))
    else:
        surely = " for sure" if least and least.fits else ""
        text = f"None of the {legal} legal settings is predicted to fit in {size_text(limit)}"
        text += f"{surely}."
        yield fact("nothing_fits", text, legal=legal, limit_bytes=limit)
        if least is not None:
            yield _smallest_need(least, limit)
            if question.framework.name not in NOT_PROBED:
                yield from padding(question.workload, question.cluster, least.settings)


def _how_to_know_speed(question: Question) -> Fact:
    cluster = question.cluster

    def missing(precision: Precision) -> list[str]:
        """Figures that a speed needs and that are not known, by their place in a cluster's file."""
        names = [_RATE.get(precision, "gpu.dense_bf16_flops_per_s"), "gpu.memory_bytes_per_s"]
        names += ["intra_node.bytes_per_s"] if cluster.gpus_per_node > 1 else []
        names += ["inter_node.bytes_per_s"] if cluster.nodes > 1 else []
        return [name for name in names if attrgetter(name)(cluster) is None]

    mine = missing(question.workload.precision)
    is_of_matrices = len(mine) == 1 and mine[0].endswith("flops_per_s")
    others = tuple(str(precision) for precision in Precision if not missing(precision))
    precisions = others if is_of_matrices else ()
    is_cpu, is_listed = cluster.gpu.device is Device.CPU, cluster.gpu.name in gpu_kinds()
    ways = [f"with --precision {' or '.join(precisions)}, whose matrix rate is known"]
    ways = ways if precisions else []
    if not ways or not is_listed:
        ways.append(f"where --cluster is a .toml file that states {', '.join(mine)}")
    text = f"Speeds are predicted {', or '.join(ways)}; or measure them there: --fidelity measured."
    if is_cpu:
        text = (
            "Speeds of CPU ranks can be measured, on that machine: --fidelity measured; or"
            f" predicted, once tuner calibrate --cluster {cluster.name} has run there."
        )
    return fact(
        "how_to_know_speed",
        text,
        cluster=cluster.name,
        is_cpu=is_cpu,
        missing=tuple(mine),
        precisions=precisions,
        is_listed=is_listed,
    )


_RATE = {Precision.FP32: "gpu.fp32_flops_per_s"}


# -- what stands behind the numbers -----------------------------------------------------------


def _failures(known: Forecast) -> Iterator[Fact]:
    for why, settings in known.uncovered.items():
        count, legal = len(settings), len(known.space.legal)
        shardings = tuple(sorted({str(one.sharding) for one in settings}))
        yield fact(
            "uncovered",
            f"Unknown of {count} of the {legal} legal settings, with {', '.join(shardings)}:"
            f" {why}.",
            count=count,
            legal=legal,
            shardings=shardings,
            why=why,
        )
    for failed, is_accident in ((known.refused, False), (known.accidents, True)):
        if failed:
            probes = tuple(sorted(failed.values(), key=lambda probe: probe.place))
            yield facts.failed(probes, Fidelity.PREDICTED, is_accident=is_accident)


def grounds_of(known: Forecast) -> Iterator[Fact]:
    """Tells numbers from dry runs from those that are arithmetic, and what they were made with."""
    if not known.estimates:
        return
    question, calibration = known.study.question, known.study.calibration
    if calibration is not None and question.framework.name is not FrameworkName.NANOTRON:
        text = calibrated_text(calibration, question.cluster)
        yield fact("measured_rates", sentence(text), text=text)
    is_transferred = any(found.near for found in known.timed[:1])
    if not known.profiles and not any(e.is_rehearsed for e in known.estimates.values()):
        failed = bool(known.refused or known.accidents)
        why = "" if failed else known.why_no_dry_runs()
        made = f"No dry run was made{f' ({why})' if why else ''}"
        made = "No dry run succeeded" if failed else made
        what = "all numbers are arithmetic"
        if is_transferred:
            what = "all memory, and every time before it is corrected, is arithmetic"
        yield fact(
            "no_dry_runs", f"{made}: {what}.", failed=failed, why=why, is_transferred=is_transferred
        )
    elif known.profiles:
        layouts = {e.settings.layout for e in known.estimates.values()} | {*known.refused}
        probes = tuple(probe.id for _, probe in known.profiles.values())
        before = " before it is corrected" if is_transferred else ""
        were, their = ("was", "its") if len(probes) == 1 else ("were", "their")
        yield fact(
            "dry_runs_made",
            f"{len(probes)} of {len(layouts)} layouts {were} dry-run ({probes_text(probes)}):"
            f" {their} memory is counted on the step itself. The memory of the others, what is"
            f" outside of tensors, and every time{before} are arithmetic.",
            probes=probes,
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
            here, wanted = (
                ", ".join(f"{package} {version}" for package, version in versions.items())
                for versions in (other, asked)
            )
            yield fact(
                "other_versions",
                f"The dry runs were made with {here}, which is installed here, instead of the"
                f" {wanted} that is asked about; what the knobs do is as in the latter.",
                ran=other,
                asked=asked,
            )
    if is_transferred:
        past = past_of(known.study.past, calibration)
        yield _transferred(known, earlier(question, studies_near(known.study, past)))


def _transferred(known: Forecast, studies: Sequence[facts.EarlierStudy]) -> Fact:
    near_ones = [e.factor for e in known.timed if e.near >= NEAR]
    low, high, count, timed = min(near_ones), max(near_ones), len(near_ones), len(known.timed)
    ends = " to ".join(dict.fromkeys(f"{end:.2f}" for end in (low, high)))
    counted = "1 other study" if len(studies) == 1 else f"{len(studies)} other studies"
    text = (
        f"The times of {count} of {timed} settings are transferred: {ends} times what"
        f" {arithmetic_text(known.at_assumed_rates)} says, by the steps that {counted} ran on such"
        f" devices with the same versions: {few_text(map(str, studies))}."
    )
    if count < timed:
        text += (
            " The other times are corrected by these too, and stay predicted: what was run is"
            f" less than {NEAR:.0%} like them."
        )
    return fact(
        "transferred",
        text,
        count=count,
        timed=timed,
        low=low,
        high=high,
        near=NEAR,
        at_assumed_rates=known.at_assumed_rates,
        studies=tuple(studies),
    )
