"""Why the answer is the answer: sentences that name the probes behind them."""

from collections.abc import Iterator, Sequence

from tuner.measurement import Measurement, Outcome
from tuner.planner.knowledge import Finding, Knowledge, Need
from tuner.planner.outlook import MemoryOutlook
from tuner.planner.ranking import LIGHTER, Choice
from tuner.planner.timing import SHORT_COUNTS
from tuner.planner.verdicts import wrong_ones
from tuner.planner.words import change_text, describe, probes_text, seconds_text
from tuner.settings import KNOBS, Settings
from tuner.sizes import size_text
from tuner.space.dead import show
from tuner.study import Probe

MOST_NAMED = 3
"""Failed probes that one sentence names."""

_BATCH = ("micro_batch_size", "gradient_accumulation_steps")


def explain(known: Knowledge, choice: Choice[Finding] | None) -> tuple[str, ...]:
    """Sentences for people, most important first."""
    sentences = list(_of_best(known, choice) if choice else _of_nothing(known))
    more = (*_out_of_memory(known), *_failures(known), *wrong_ones(known.study, known.space.legal))
    return (*sentences, *more, *_coverage(known))


def _of_best(known: Knowledge, choice: Choice[Finding]) -> Iterator[str]:
    best = choice.best
    yield _why_this(known, best)
    yield from _tie(choice)
    yield from _runner_up(known, choice)
    yield from _extrapolation(best)
    yield from _knob_effects(known, best)


def _of_nothing(known: Knowledge) -> Iterator[str]:
    if not known.repetitions:
        yield "Nothing was probed yet, so there is no answer."
        return
    yield f"None of the settings probed was seen to fit in {size_text(known.limit_bytes)}."
    if need := MemoryOutlook(known).smallest_need():
        yield f"{need[0].upper()}{need[1:]}."


def _why_this(known: Knowledge, best: Finding) -> str:
    low, high = best.step_time.low, best.step_time.high
    assert low is not None
    assert high is not None
    return (
        f"{describe(best.settings)} takes {seconds_text(best.seconds)} for an optimizer step"
        f" (80% interval {seconds_text(low)} to {seconds_text(high)}) and needs"
        f" {size_text(best.needed_bytes)} of {size_text(known.limit_bytes)} on one device"
        f" (probe {_ids(best)})."
    )


def _tie(choice: Choice[Finding]) -> Iterator[str]:
    best, fastest = choice.best, choice.fastest
    others = [f for f in choice.tied if f is not best]
    if best is not fastest:
        yield (
            f"Its speed cannot be told apart from that of the fastest,"
            f" {describe(fastest.settings)} with {seconds_text(fastest.seconds)} and"
            f" {size_text(fastest.needed_bytes)} (probe {_ids(fastest)}); {choice.reason}."
        )
    elif others:
        named = probes_text(f.probes[0].id for f in others[:MOST_NAMED])
        more = f" and {len(others) - MOST_NAMED} more" if len(others) > MOST_NAMED else ""
        yield (
            f"Its speed cannot be told apart from that of {named}{more}, none of which is"
            f" lighter by {LIGHTER:.0%} or more."
        )


def _runner_up(known: Knowledge, choice: Choice[Finding]) -> Iterator[str]:
    best = choice.best
    second = next((f for f in known.fitting if f is not best), None)
    if second is None:
        yield "No other settings that fit were timed."
        return
    if second is choice.fastest:  # named as what it ties with
        return
    yield (
        f"Next comes {describe(second.settings)} with {seconds_text(second.seconds)}"
        f" ({change_text(second.seconds / best.seconds)}) and {size_text(second.needed_bytes)}"
        f" (probe {_ids(second)})."
    )


def _extrapolation(best: Finding) -> Iterator[str]:
    count = best.settings.gradient_accumulation_steps
    if best.extrapolated:
        ran = sorted({n for p in best.probes if p.measurement for n in p.measurement.step_times_s})
        yield (
            f"Its step time is extrapolated from steps of {' and '.join(map(str, ran))}"
            f" micro-batches to {count} (probe {_ids(best)})."
        )
    elif count > max(SHORT_COUNTS) and len(best.probes) > 1:
        run_out = [p.id for p in best.probes if p.measurement and _ran(p.measurement, count)]
        yield f"Steps of all its {count} micro-batches were run (probe {probes_text(run_out)})."


def _ran(measurement: Measurement, count: int) -> bool:
    return bool(measurement.step_times_s.get(count))


# -- what each knob did -----------------------------------------------------------------------


def _knob_effects(known: Knowledge, best: Finding) -> Iterator[str]:
    """Probes that differ from the best in one knob only, the largest effect on speed first."""
    effects: list[tuple[float, str]] = []
    for knob in KNOBS:
        if knob not in _BATCH:
            effects.extend(_effects_of(known, best, knob))
    effects.extend(_batch_effects(known, best))
    effects.sort(key=lambda effect: (-effect[0], effect[1]))
    yield from (text for _, text in effects)
    yield from _other_pairs(known, best)


def _effects_of(known: Knowledge, best: Finding, knob: str) -> Iterator[tuple[float, str]]:
    mine = getattr(best.settings, knob)
    for other in _differing(known, best.settings, (knob,)):
        theirs = f"{knob}={show(getattr(other, knob))}"
        yield _compared(known, best, other, f"With {theirs} instead of {show(mine)}")


def _batch_effects(known: Knowledge, best: Finding) -> Iterator[tuple[float, str]]:
    """The nearest other micro-batch sizes, up and down."""
    others = _differing(known, best.settings, _BATCH)
    size = best.settings.micro_batch_size
    below = [s for s in others if s.micro_batch_size < size]
    above = [s for s in others if s.micro_batch_size > size]
    nearest = [*sorted(below, key=_micro)[-1:], *sorted(above, key=_micro)[:1]]
    for other in nearest:
        text = f"With micro_batch_size={other.micro_batch_size} instead of {size}"
        yield _compared(known, best, other, text)


def _micro(settings: Settings) -> int:
    return settings.micro_batch_size


def _differing(known: Knowledge, best: Settings, knobs: Sequence[str]) -> list[Settings]:
    """Probed settings that differ from ``best`` in ``knobs`` only."""
    probed = [s for s in known.space.legal if s in known.findings or s in known.too_large]
    same = [knob for knob in KNOBS if knob not in knobs]
    return [s for s in probed if s != best and all(getattr(s, k) == getattr(best, k) for k in same)]


def _compared(known: Knowledge, best: Finding, other: Settings, text: str) -> tuple[float, str]:
    """How large the effect on speed is, and the sentence."""
    finding = known.findings.get(other)
    if finding is None or finding.step_time.value is None:
        need = known.too_large.get(other)
        return 0.0, f"{text}, {_shortage(need) if need else 'no time was taken'}."
    ratio = finding.seconds / best.seconds
    fits = "" if known.fits(finding) else ", which does not fit"
    return max(ratio, 1 / ratio), (
        f"{text}, a step takes {seconds_text(finding.seconds)} ({change_text(ratio)}) and needs"
        f" {size_text(finding.needed_bytes)}{fits} (probe {_ids(finding)} against {_ids(best)})."
    )


def _shortage(need: Need) -> str:
    more = "at least " if need.at_least else ""
    return f"a device would need {more}{size_text(need.bytes)} (probe #{need.probe_id})"


def _other_pairs(known: Knowledge, best: Finding) -> Iterator[str]:
    """What the two headline knobs did elsewhere, where the best itself has no such pair."""
    for knob in ("sync_each_batch", "tp_recompute_allgather"):
        if _differing(known, best.settings, (knob,)):
            continue
        for finding in known.fitting:
            others = _differing(known, finding.settings, (knob,)) if finding is not best else []
            if others and others[0] in known.findings:
                theirs = f"{knob}={show(getattr(others[0], knob))}"
                mine = show(getattr(finding.settings, knob))
                text = f"Elsewhere, with {theirs} instead of {mine}"
                yield _compared(known, finding, others[0], text)[1]
                break


# -- what failed, and how much was seen -------------------------------------------------------


def _out_of_memory(known: Knowledge) -> Iterator[str]:
    ran_out = [
        p for p in _finished(known) if p.measurement and p.measurement.outcome is Outcome.OOM
    ]
    if ran_out:
        named = "; ".join(_oom_text(probe) for probe in ran_out[:MOST_NAMED])
        more = f"; and {len(ran_out) - MOST_NAMED} more" if len(ran_out) > MOST_NAMED else ""
        yield f"Out of memory: {named}{more}."


def _oom_text(probe: Probe) -> str:
    oom = probe.measurement.oom if probe.measurement else None
    where = f" in {oom.phase}, needing at least {size_text(oom.needed_bytes)}" if oom else ""
    return f"{describe(probe.request.settings)}{where} (probe #{probe.id})"


def _failures(known: Knowledge) -> Iterator[str]:
    failed = [
        probe
        for probe in _finished(known)
        if probe.measurement and probe.measurement.outcome not in (Outcome.OK, Outcome.OOM)
    ]
    if failed:
        named = "; ".join(_failure_text(probe) for probe in failed[:MOST_NAMED])
        more = f"; and {len(failed) - MOST_NAMED} more" if len(failed) > MOST_NAMED else ""
        yield f"Without a result: {named}{more}."


def _failure_text(probe: Probe) -> str:
    assert probe.measurement is not None
    detail = f", {probe.measurement.detail}" if probe.measurement.detail else ""
    settings = describe(probe.request.settings)
    return f"{settings} ended as {probe.measurement.outcome}{detail} (probe #{probe.id})"


def _coverage(known: Knowledge) -> Iterator[str]:
    probed = sum(1 for s in known.space.legal if s in known.repetitions)
    total, count = len(known.space.legal), len(_finished(known))
    probes = "1 probe" if count == 1 else f"{count} probes"
    yield f"{probed} of the {total} legal settings were probed, in {probes}."


def _finished(known: Knowledge) -> list[Probe]:
    return sorted((p for p in known.study.probes if p.measurement), key=lambda p: p.id)


def _ids(finding: Finding) -> str:
    return probes_text(probe.id for probe in finding.probes)
