"""Emulated probes at one price: those of before a calibration have what they send priced anew."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from tuner.core.cluster import Device
from tuner.core.measurement import PROBED, Measurement, Outcome
from tuner.core.quantity import UNKNOWN, Quantity
from tuner.core.study import Probe, Study
from tuner.cost.prediction import predict
from tuner.cost.time.compute import layer_backends
from tuner.cost.time.emulated import priced, rates_of
from tuner.cost.time.step import missing_link
from tuner.planner.timing import speed_of, step_time


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
