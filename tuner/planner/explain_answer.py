"""Why this one, and what was second: sentences that name the probes behind them."""

from collections.abc import Iterator

from tuner.core.measurement import Measurement
from tuner.core.words import (
    MOST_NAMED,
    describe,
    interval_text,
    probes_text,
    seconds_text,
)
from tuner.planner.expected_speed import SpeedOutlook
from tuner.planner.explain_knobs import knob_effects
from tuner.planner.explain_probes import (
    coverage,
    earlier_texts,
    failures,
    finished,
    out_of_memory,
    stopped_early,
    what_ran,
)
from tuner.planner.explain_worth import more_probes, paid_for_itself
from tuner.planner.findings import Finding
from tuner.planner.knowledge import Knowledge
from tuner.planner.ranking import LIGHTER, Choice
from tuner.planner.step_times import StepTimeChange, change_between, fair
from tuner.planner.timing import SHORT_COUNTS
from tuner.planner.verdicts import wrong_ones
from tuner.text import size_text


def why_this(known: Knowledge, best: Finding) -> str:
    """The answer's speed and memory."""
    return (
        f"{describe(best.settings)} takes {seconds_text(best.seconds)} for an optimizer step"
        f" ({interval_text(fair(known)[best.settings].step_time)}) and needs"
        f" {size_text(best.needed_bytes)} of {size_text(known.limit_bytes)} on one device"
        f" (probe {ids(best)}; {_provenance(best)})."
    )


def tie(known: Knowledge, choice: Choice[Finding]) -> Iterator[str]:
    """Says what the answer is tied with, and what decided."""
    best, fastest = choice.best, choice.fastest
    others = [f for f in choice.tied if f is not best]
    if best is not fastest:
        yield (
            f"Its speed {_as_good(known, choice)} that of the fastest,"
            f" {describe(fastest.settings)} with {_against(known, best, fastest)}"
            f" (probe {ids(fastest)}); {choice.reason}."
        )
    elif others:
        named = probes_text(f.probes[0].id for f in others[:MOST_NAMED])
        more = f" and {len(others) - MOST_NAMED} more" if len(others) > MOST_NAMED else ""
        yield (
            f"Its speed cannot be told apart from that of {named}{more}, none of which is"
            f" lighter by {LIGHTER:.0%} or more."
        )


def runner_up(known: Knowledge, choice: Choice[Finding]) -> Iterator[str]:
    """Says what comes next, and by how much."""
    best = choice.best
    second = next((f for f in known.fitting if f is not best), None)
    if second is None:
        yield "No other settings that fit were timed."
    elif second is not choice.fastest:  # which was named as what the answer is tied with
        yield (
            f"Next comes {describe(second.settings)} with {_against(known, best, second)}"
            f" (probe {ids(second)})."
        )


def allocator(best: Finding) -> Iterator[str]:
    """How torch's allocator was configured for the answer's probes, if it was."""
    hardware = [p.measurement.hardware for p in best.probes if p.measurement]
    for conf in dict.fromkeys(one["allocator_conf"] for one in hardware if "allocator_conf" in one):
        yield f"Its probes ran with PYTORCH_ALLOC_CONF={conf}: launch with the same."


def extrapolation(best: Finding) -> Iterator[str]:
    """Tells whether the answer's time is of steps as long as it has them."""
    count = best.settings.gradient_accumulation_steps
    if best.extrapolated:
        ran = sorted({n for p in best.probes if p.measurement for n in p.measurement.step_times_s})
        yield (
            f"Its step time is extrapolated from steps of {' and '.join(map(str, ran))}"
            f" micro-batches to {count} (probe {ids(best)})."
        )
    elif count > max(SHORT_COUNTS) and len(best.probes) > 1:
        run_out = [p.id for p in best.probes if p.measurement and _ran(p.measurement, count)]
        yield f"Steps of all its {count} micro-batches were run (probe {probes_text(run_out)})."


def ids(finding: Finding) -> str:
    """The numbers of a finding's probes."""
    return probes_text(probe.id for probe in finding.probes)


def _as_good(known: Knowledge, choice: Choice[Finding]) -> str:
    """Why the best is tied with the fastest: by their intervals, or by the tolerance alone."""
    if _change(known, choice.best, choice.fastest).is_clear:
        return f"is within the tolerance ({known.study.terms.tolerance:.1%}) of"
    return "cannot be told apart from"


def _against(known: Knowledge, best: Finding, other: Finding) -> str:
    """Another's speed and memory."""
    change = _change(known, best, other)
    return f"{seconds_text(other.seconds)} ({change}) and {size_text(other.needed_bytes)}"


def _change(known: Knowledge, best: Finding, other: Finding) -> StepTimeChange:
    """From what was chosen for its speed to another that fits."""
    found = fair(known)
    return change_between(found[best.settings], found[other.settings])


def _provenance(best: Finding) -> str:
    time, memory = best.step_time.provenance, best.peak.provenance
    return f"both are {time}" if time is memory else f"the time is {time}, the memory {memory}"


def _ran(measurement: Measurement, count: int) -> bool:
    return bool(measurement.step_times_s.get(count))


def explain(known: Knowledge, choice: Choice[Finding]) -> tuple[str, ...]:
    """Sentences for people on an answer that was probed, most important first."""
    outlook = SpeedOutlook(known)
    wrong = wrong_ones(known.wrong)
    sentences = *_of_best(known, choice, outlook), *what_failed(known), *wrong
    return (*sentences, *what_is_left(known, outlook))


def what_failed(known: Knowledge) -> Iterator[str]:
    """Says which probes came to nothing."""
    yield from out_of_memory(known)
    yield from stopped_early(known)
    yield from failures(known)


def what_is_left(known: Knowledge, outlook: SpeedOutlook | None = None) -> Iterator[str]:
    """Says what more probes may gain, and how much was seen."""
    if finished(known):
        outlook = outlook or SpeedOutlook(known)
        yield from more_probes(known, outlook)
        yield from _others(known, outlook)
    yield from coverage(known)


def _others(known: Knowledge, outlook: SpeedOutlook) -> Iterator[str]:
    """Says which other studies correct the prediction, and when and with what these ran."""
    if outlook.others:
        count = len(outlook.others)
        counted = "1 study" if count == 1 else f"{count} studies"
        named = earlier_texts(known.study.question, outlook.others)
        yield f"Other studies' probes are those of {counted} on such devices: {named}."


def _of_best(known: Knowledge, choice: Choice[Finding], outlook: SpeedOutlook) -> Iterator[str]:
    best = choice.best
    yield why_this(known, best)
    yield from what_ran(known, best)
    yield from tie(known, choice)
    yield from runner_up(known, choice)
    yield from extrapolation(best)
    yield from allocator(best)
    yield from knob_effects(known, best, outlook)
    yield from paid_for_itself(known, best, outlook)
