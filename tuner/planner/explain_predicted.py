"""Why a predicted answer is the answer, which of its numbers are from dry runs, and what is not."""

from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter

from tuner.catalog.gpus import gpu_kinds
from tuner.core.cluster import Cluster, Device
from tuner.core.configuration import Settings
from tuner.core.framework import FrameworkName, same_release
from tuner.core.measurement import Fidelity
from tuner.core.quantity import Provenance
from tuner.core.study import Probe, Question, Study
from tuner.core.words import (
    MOST_NAMED,
    change_text,
    describe,
    describe_class,
    seconds_text,
)
from tuner.core.workload import Precision
from tuner.cost.calibration import calibrated_text
from tuner.cost.explain import explain_memory, padding_words
from tuner.planner.dry_runs import leading
from tuner.planner.estimates import Estimate, Forecast
from tuner.planner.explain_probes import earlier_texts, probed_too
from tuner.planner.ranking import Choice, near
from tuner.planner.verdicts import wrong_ones
from tuner.text import size_text

# Part of the memory by which the upper end of its interval must exceed it to be told.
CLEARLY = 0.01

# Price in speed up to which lighter settings are told: about twice the median error of speeds that
# nothing was fitted on (``make bench-predict``).
LITTLE_SLOWER = 0.1
# Part of the memory that they must spare.
MUCH_LIGHTER = 0.1


def explain_prediction(
    study: Study, known: Forecast, choice: Choice[Estimate] | None
) -> tuple[str, ...]:
    """Sentences for people, most important first.

    Args:
        study: with the probes of all fidelities.
        known: what is predicted of it.
        choice: the answer.
    """
    return (*why_predicted(known, choice), *probed_too(study, known))


def why_predicted(known: Forecast, choice: Choice[Estimate] | None) -> Iterator[str]:
    """The same without what was measured or emulated."""
    yield from _of_best(known, choice) if choice else _of_nothing(known)
    yield from _failures(known)
    yield from wrong_ones(known.wrong)
    yield from _grounds(known)


def _of_best(known: Forecast, choice: Choice[Estimate]) -> Iterator[str]:
    best = choice.best
    yield _why_this(known, best)
    yield from _evidence(known, best)
    yield from _tight(known, best)
    yield from _tie(choice)
    yield from _runner_up(known, choice)
    yield from _unverified(known, choice)
    yield from _lighter(known, choice)
    question = known.study.question
    yield from explain_memory(
        question.workload,
        question.cluster,
        question.framework,
        best.settings,
        profiles={key: profile for key, (profile, _) in known.profiles.items()},
    )
    if best.probe:
        yield from (f"Of its dry run: {note}." for note in known.notes(best))


def _of_nothing(known: Forecast) -> Iterator[str]:
    if known.untimed:
        yield from _of_untimed(known)
    elif known.what_is_wrong:
        fit = sum(e.may_fit for e in known.wrong_ones)
        yield (
            f"{fit} of the {len(known.space.legal)} legal settings are predicted to fit in"
            f" {size_text(known.limit_bytes)}, and all of them train something else."
        )
    elif leading(known) is None and not known.refused:
        yield "Nothing is predicted of any settings."
    elif leading(known) is None:
        yield "The dry runs failed, so nothing is known of what any settings need."
    else:
        legal = len(known.space.legal)
        limit = size_text(known.limit_bytes)
        yield f"None of the {legal} legal settings is predicted to fit in {limit}."
        if need := known.smallest_need():
            yield f"{need[0].upper()}{need[1:]}."
        yield from _padding(known)


def _padding(known: Forecast) -> Iterator[str]:
    """Says that the smallest need is so for the padding of experts."""
    question, least = known.study.question, known.smallest
    if least is not None and question.framework.name is not FrameworkName.NANOTRON:
        words = padding_words(question.workload, question.cluster, least.settings)
        yield from [f"{words}."] if words else []


def _of_untimed(known: Forecast) -> Iterator[str]:
    """Says what is known to fit where no speed is known, and how one could be."""
    first, question = known.untimed[0], known.study.question
    fit = sum(e.may_fit for e in known.estimates.values())
    yield (
        f"{fit} of the {len(known.space.legal)} legal settings are predicted to fit in"
        f" {size_text(known.limit_bytes)}, but which of them is the fastest is not known:"
        f" {known.unknown}."
    )
    if known.study.terms.fidelity is Fidelity.PREDICTED:  # else it is to be measured anyway
        yield how_to_know_speed(question)
    yield (
        "Of each class of settings the largest micro-batch that fits is listed, the simplest class"
        f" first: {describe(first.settings)} needs {_need(first)}, {basis_text(first)}."
    )
    yield from explain_memory(
        question.workload,
        question.cluster,
        question.framework,
        first.settings,
        profiles={key: profile for key, (profile, _) in known.profiles.items()},
    )


def how_to_know_speed(question: Question) -> str:
    """Says what to do where no speed is predicted."""
    if question.cluster.gpu.device is Device.CPU:
        return (
            "Speeds of CPU ranks can be measured, on that machine: --fidelity measured; or"
            f" predicted, once tuner calibrate --cluster {question.cluster.name} has run there."
        )
    matrices = _matrix_rate(question.workload.precision)
    missing = _missing_figures(question.cluster, matrices)
    ways = []
    if missing == [matrices] and (others := _known_precisions(question)):
        ways.append(f"with --precision {' or '.join(others)}, whose matrix rate is known")
    if not ways or question.cluster.gpu.name not in gpu_kinds():  # which are listed with all rates
        ways.append(f"where --cluster is a .toml file that states {', '.join(missing)}")
    return f"Speeds are predicted {', or '.join(ways)}; or measure them there: --fidelity measured."


def _matrix_rate(precision: Precision) -> str:
    return f"gpu.{'fp32' if precision is Precision.FP32 else 'dense_bf16'}_flops_per_s"


def _known_precisions(question: Question) -> list[Precision]:
    """Precisions whose matrix rate is known of the cluster's GPU."""
    cluster = question.cluster
    return [p for p in Precision if not _missing_figures(cluster, _matrix_rate(p))]


def _missing_figures(cluster: Cluster, matrices: str) -> list[str]:
    """Figures that a speed needs and that are not known, by their place in a cluster's file."""
    names = [matrices, "gpu.memory_bytes_per_s"]
    names += ["intra_node.bytes_per_s"] if cluster.gpus_per_node > 1 else []
    names += ["inter_node.bytes_per_s"] if cluster.nodes > 1 else []
    return [name for name in names if attrgetter(name)(cluster) is None]


def _why_this(known: Forecast, best: Estimate) -> str:
    low, high = best.step_time.low, best.step_time.high
    assert low is not None
    assert high is not None
    limit = size_text(known.limit_bytes)
    time = "arithmetic"
    if best.step_time.provenance is Provenance.TRANSFERRED:
        time = "transferred: arithmetic, corrected by what other studies measured"
    elif best.near:
        time = "arithmetic, corrected by what other studies measured of less similar settings"
    memory = f"from a dry run (probe #{best.probe.id})" if best.probe else "arithmetic"
    same = time == memory
    basis = "both are arithmetic" if same else f"its memory is {memory}, its time is {time}"
    return (
        f"{describe(best.settings)} is predicted to take {seconds_text(best.seconds)} for an"
        f" optimizer step (80% interval {seconds_text(low)} to {seconds_text(high)}) and to need"
        f" {_need(best)} of {limit} on one device; {basis}."
    )


def _need(found: Estimate) -> str:
    """``61.2 GiB``, or with the interval's upper end where that is another number."""
    text = size_text(found.expected_bytes)
    if found.needed_bytes <= found.expected_bytes * (1 + CLEARLY):
        return text
    return f"{text} (up to {size_text(found.needed_bytes)})"


def _evidence(known: Forecast, best: Estimate) -> Iterator[str]:
    """How near what other studies ran is to the answer."""
    if best.step_time.provenance is Provenance.TRANSFERRED:
        yield (
            "No step of this question was timed. The most similar settings that other studies ran"
            f" are {best.near:.0%} alike, workload included; by these studies the step takes"
            f" {best.factor:.2f} times what {_arithmetic(known)} says."
        )


def _arithmetic(known: Forecast) -> str:
    return "arithmetic at assumed rates" if known.at_assumed_rates else "arithmetic"


def _tight(known: Forecast, best: Estimate) -> Iterator[str]:
    if not best.fits:
        yield (
            f"At the upper end of its memory's interval it would not fit: nothing is predicted to"
            f" fit in {size_text(known.limit_bytes)} for sure."
        )


def _tie(choice: Choice[Estimate]) -> Iterator[str]:
    best, fastest = choice.best, choice.fastest
    if best is fastest:
        return
    yield (
        f"{describe(fastest.settings)} is as fast, within the tolerance, with"
        f" {seconds_text(fastest.seconds)} and {_need(fastest)}; {choice.reason}."
    )


def _runner_up(known: Forecast, choice: Choice[Estimate]) -> Iterator[str]:
    """The next one of another class: other micro-batches of the same are much alike."""
    best, tolerance = choice.best, known.study.terms.tolerance
    slower = (
        e
        for e in known.fitting
        if e.seconds > best.seconds
        and not near(best, e, tolerance)
        and e.settings.settings_class != best.settings.settings_class
    )
    second = next(slower, None)
    if second is not None:
        yield (
            f"Next comes {describe(second.settings)} with {seconds_text(second.seconds)}"
            f" ({change_text(second.seconds / best.seconds)}) and {_need(second)},"
            f" {basis_text(second)}."
        )


def _lighter(known: Forecast, choice: Choice[Estimate]) -> Iterator[str]:
    """The settings that spare most memory for a little speed; the best's own ties are told."""
    best = choice.best
    cheap = [
        e
        for e in known.fitting
        if e.seconds <= best.seconds * (1 + LITTLE_SLOWER)
        and e.needed_bytes < best.needed_bytes * (1 - MUCH_LIGHTER)
    ]
    if not cheap:
        return
    least = min(cheap, key=lambda e: (e.needed_bytes, e.seconds))
    spared = best.expected_bytes - least.expected_bytes
    price = change_text(least.seconds / best.seconds)
    yield (
        f"{describe(least.settings)} needs {size_text(spared)} less, {basis_text(least)}, and is"
        f" predicted to take {seconds_text(least.seconds)} ({price}):"
        " predictions err alike for all settings, so only a tie within the tolerance is decided by"
        " memory."
    )


def _unverified(known: Forecast, choice: Choice[Estimate]) -> Iterator[str]:
    leader = leading(known)
    if leader is not None and leader.seconds < choice.best.seconds:
        ratio = leader.seconds / choice.best.seconds
        yield (
            f"By arithmetic {describe(leader.settings)} would be faster, with"
            f" {seconds_text(leader.seconds)} ({change_text(ratio)}) and {_need(leader)}, but its"
            " class was not dry-run; more --max-probes allow that."
        )


def basis_text(found: Estimate) -> str:
    """Says what a memory figure was computed from."""
    return f"from a dry run (probe #{found.probe.id})" if found.probe else "by arithmetic"


# -- what stands behind the numbers -----------------------------------------------------------


def _failures(known: Forecast) -> Iterator[str]:
    for why, settings in known.uncovered.items():
        shardings = ", ".join(sorted({one.sharding for one in settings}))
        yield (
            f"Unknown of {len(settings)} of the {len(known.space.legal)} legal settings, with"
            f" {shardings}: {why}."
        )
    if known.refused:
        yield f"Unknown, because their dry run failed: {_failure_texts(known.refused)}."
    if known.accidents:
        yield (
            "By arithmetic, because their dry run had an accident, which the next asking tries"
            f" again: {_failure_texts(known.accidents)}."
        )


def _failure_texts(failed: Mapping[Settings, Probe]) -> str:
    probes = sorted(failed.values(), key=lambda probe: probe.id)
    named = "; ".join(map(failure_text, probes[:MOST_NAMED]))
    return named + (f"; and {len(probes) - MOST_NAMED} more" if len(probes) > MOST_NAMED else "")


def failure_text(probe: Probe) -> str:
    """How a dry run failed, and of what class."""
    assert probe.measurement is not None
    settings = describe_class(probe.request.settings)
    detail = f", {probe.measurement.detail}" if probe.measurement.detail else ""
    return f"{settings} ended as {probe.measurement.outcome}{detail} (probe #{probe.id})"


def _grounds(known: Forecast) -> Iterator[str]:
    """Says which numbers are from dry runs, which are arithmetic, and made with what."""
    if not known.estimates:
        return
    yield from _rates(known)
    times = "every time" if not _is_transferred(known) else "every time before it is corrected"
    if not known.profiles:
        numbers = (
            "all numbers are" if not _is_transferred(known) else f"all memory, and {times}, is"
        )
        yield f"{_no_dry_run(known)}: {numbers} arithmetic."
        yield from _from_others(known)
        return
    probes = ", ".join(f"#{probe.id}" for _, probe in known.profiles.values())
    classes = len({e.settings.settings_class for e in known.estimates.values()} | {*known.refused})
    yield (
        f"{len(known.profiles)} of {classes} classes of settings were dry-run (probe {probes}):"
        " their memory is counted on the step itself. The memory of the others, what is outside"
        f" of tensors, and {times} are arithmetic."
    )
    yield from _other_versions(known)
    yield from _from_others(known)


def _is_transferred(known: Forecast) -> bool:
    """Tells whether times were corrected by what other studies measured."""
    return any(found.near for found in known.timed[:1])


def _from_others(known: Forecast) -> Iterator[str]:
    """Says which studies times were corrected by, and when and with what these ran."""
    if not _is_transferred(known):
        return
    from tuner.planner.similar import NEAR, studies_near  # imports NumPy

    studies = list(studies_near(known.study))
    near = [e.factor for e in known.timed if e.near >= NEAR]
    named = earlier_texts(known.study.question, studies)
    counted = "1 other study" if len(studies) == 1 else f"{len(studies)} other studies"
    yield (
        f"The times of {len(near)} of {len(known.timed)} settings are transferred:"
        f" {_range(near)} times what {_arithmetic(known)} says, by the steps that"
        f" {counted} ran on such devices with the same versions: {named}."
    )
    if len(near) < len(known.timed):
        yield (
            "The other times are corrected by these too, and stay predicted: what was run is less"
            f" than {NEAR:.0%} like them."
        )


def _range(factors: Sequence[float]) -> str:
    """``1.25``, or ``1.25 to 1.31``."""
    ends = dict.fromkeys(f"{end:.2f}" for end in (min(factors), max(factors)))
    return " to ".join(ends)


def _rates(known: Forecast) -> Iterator[str]:
    """Says where the rates of devices and links are measured ones."""
    question, calibration = known.study.question, known.study.calibration
    if calibration is not None and question.framework.name is not FrameworkName.NANOTRON:
        told = calibrated_text(calibration, question.cluster)
        yield f"{told[0].upper()}{told[1:]}."


def _no_dry_run(known: Forecast) -> str:
    if known.refused or known.accidents:
        return "No dry run succeeded"
    why = known.why_no_dry_runs()
    return f"No dry run was made{f' ({why})' if why else ''}"


def _other_versions(known: Forecast) -> Iterator[str]:
    """Dry runs run with what is installed, whatever versions are stated."""
    stated = known.study.question.framework.versions
    found: dict[str, str] = {}
    for _, probe in known.profiles.values():
        found |= probe.measurement.versions if probe.measurement else {}
    other = {p: found[p] for p in stated if p in found and not same_release(found[p], stated[p])}
    if other:
        ran = ", ".join(f"{package} {version}" for package, version in other.items())
        asked = ", ".join(f"{package} {stated[package]}" for package in other)
        yield (
            f"The dry runs were made with {ran}, which is installed here, instead of the {asked}"
            " that is asked about; what the knobs do is as in the latter."
        )
