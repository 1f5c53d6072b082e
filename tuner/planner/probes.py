"""Tells of one probe: as plain values, and in words as commands and pages list them.

Those emulated before a calibration have what they send priced anew, so that all are at one price.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from statistics import median
from typing import Any

from tuner.core.cluster import Device
from tuner.core.measurement import PROBED, Fidelity, Measurement, Outcome
from tuner.core.quantity import UNKNOWN, Quantity
from tuner.core.study import Probe, Study
from tuner.core.words import rank_word, rate_text
from tuner.cost.prediction import predict
from tuner.cost.time.compute import layer_backends
from tuner.cost.time.emulated import priced, rates_of
from tuner.cost.time.step import missing_link
from tuner.planner.timing import speed_of, step_time
from tuner.text import time_text

# What stands behind figures of each fidelity.
FIDELITIES: Mapping[Fidelity, str] = {
    Fidelity.MEASURED: "all ranks were run",
    Fidelity.EMULATED: "memory and computing of rank 0 alone, communication by arithmetic",
    Fidelity.REHEARSED: "memory of rank 0 by torch's CUDA allocator on no GPU, time by arithmetic",
    Fidelity.PREDICTED: "tensors by a dry run, what is beside them by arithmetic",
}


def repriced(study: Study) -> Study:
    """The study with all that was emulated at today's rates, so that it can be compared."""
    found = [(probe, at_todays_rates(study, probe)) for probe in study.probes]
    if all(measurement is probe.measurement for probe, measurement in found):
        return study
    return replace(study, probes=tuple(replace(probe, measurement=m) for probe, m in found))


def at_todays_rates(study: Study, probe: Probe) -> Measurement | None:
    """Returns a probe's measurement, emulated steps with communication at today's rates.

    It stays as it is where these are the rates that it was priced at, where the rate of a link is
    not known any more, and where computing was not noted by phase, as by earlier versions.
    """
    question, found = study.question, probe.measurement
    if found is None or found.emulation is None or not found.emulation.phases_s:
        return found
    rates = rates_of(study.calibration, question.workload.precision, question.cluster)
    settings = probe.request.settings
    if found.emulation.priced_at == rates.at or missing_link(settings, rates.cluster):
        return found
    return priced(found, settings, rates)


def probe_as_dict(study: Study, probe: Probe) -> dict[str, Any]:
    """A probe of a study as plain JSON values; of one that is done with outcome, whether it fits on
    the study's limits, and its step time and speed at today's rates."""
    probe = replace(probe, measurement=at_todays_rates(study, probe))
    values = probe.as_dict()
    if probe.measurement is not None:
        time = step_time_of(study, probe, probe.measurement)
        values["outcome"] = str(probe.measurement.outcome)
        values["fits"] = fits(study, probe.measurement)
        values["step_time_s"] = time.as_dict()
        values["tokens_per_s_per_gpu"] = speed_of(time, study.question).as_dict()
    return values


def step_time_of(study: Study, probe: Probe, measurement: Measurement) -> Quantity:
    """Measured; or of a dry run or a rehearsal, which take no time, predicted."""
    settings, question = probe.request.settings, study.question
    if probe.request.fidelity in PROBED:
        return step_time([measurement], settings.gradient_accumulation_steps)
    if measurement.memory is None or not question.workload.has_arithmetic:
        return UNKNOWN
    found = predict(*question.job, settings, calibration=study.calibration)
    return found.step_time_s


def attention_text(study: Study, measurement: Measurement) -> str:
    """The kernels that torch computed attention with, by layers, such as ``flash in 22 layers``.

    Where the prediction was of others, it says so: then its memory and time are of another step.
    """
    question, seen = study.question, dict(measurement.attention)
    said = _by_layers(seen)
    if question.cluster.gpu.device is Device.CPU or not seen or question.workload.model.is_traced:
        return said
    expected = Counter(map(str, layer_backends(question.workload, question.cluster)))
    return said if seen == expected else f"{said}; predicted was {_by_layers(expected)}"


def _by_layers(layers: Mapping[str, int]) -> str:
    return ", ".join(
        f"{backend} in {count} layer{'' if count == 1 else 's'}"
        for backend, count in sorted(layers.items())
    )


def clocks_text(measurement: Measurement) -> str:
    """Says the clocks of a rank's GPU right after the last timed step; empty where not known."""
    clocks = measurement.hardware.get("clocks", {})
    units = {"sm_mhz": "SM at {:.0f} MHz", "power_w": "{:.0f} W", "temperature_c": "{:.0f} °C"}
    told = [form.format(clocks[name]) for name, form in units.items() if name in clocks]
    if not told:
        return ""
    text = f"{', '.join(told)} after the last step"
    text += ", when it was idle" if clocks.get("idle") else ""
    reasons = ", ".join(clocks.get("throttle", ()))
    return f"{text}; slowed by {reasons}" if reasons else text


def fits(study: Study, measurement: Measurement) -> bool | None:
    if measurement.outcome is Outcome.OOM:
        return False
    if measurement.memory is None:
        return None
    return measurement.memory.needed_bytes <= study.limits.limit_bytes(study.question.cluster)


def outcomes(probes: Iterable[Probe]) -> dict[str, int]:
    counts = Counter(str(p.measurement.outcome) for p in probes if p.measurement)
    return dict(sorted(counts.items()))


def passes_text(count: int) -> str:
    return f"{count} micro-batch{'' if count == 1 else 'es'}"


def time_facts(study: Study, probe: Probe, found: Measurement) -> Iterator[tuple[str, str]]:
    """The speed of a probe, of an emulated one computing and exposed communication apart; and its
    losses."""
    if (emulation := found.emulation) is not None:
        # of the steps with most micro-batches
        count = max(emulation.compute_s)
        computing = time_text(median(emulation.compute_s[count]))
        yield "computing", f"{computing} s of {passes_text(count)}"
        if emulation.copies_left_out:
            yield "copies", f"are in that time: {emulation.copies_left_out}"
        if emulation.unpriced:
            yield "exposed", f"unknown: {emulation.unpriced}"
        else:
            exposed = emulation.exposed_s[count]
            interval = f"80% interval {time_text(exposed.low_s)} to {time_text(exposed.high_s)}"
            rates = f", at rates of {emulation.priced_at[:10]}" if emulation.priced_at else ""
            text = f"{time_text(exposed.value_s)} s of communication ({interval}){rates}"
            yield "exposed", text
            if emulation.stands_in:
                yield "device", "another kind than the cluster's: its time only predicts"
    time = step_time_of(study, probe, found)
    if time.value is not None:
        yield "speed", rate_text(speed_of(time, study.question), rank_word(study.question))
        interval = f"80% interval {time_text(time.low)} to {time_text(time.high)}"
        steps = " and ".join(
            f"{len(times)} of {passes_text(count)}" for count, times in found.step_times_s.items()
        )
        by = f"; steps timed: {steps}" if steps else ", by arithmetic"
        yield "step", f"{time_text(time.value)} s ({interval}){by}"
    if found.losses:  # also where nothing was timed: they may say why
        first, last = found.losses[0], found.losses[-1]
        yield "loss", f"{first:.4f} in the first step, {last:.4f} in the last"
