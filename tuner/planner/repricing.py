"""Emulated probes at one price: those of before a calibration have what they send priced anew."""

from dataclasses import replace

from tuner.cost.emulated import priced, rates_of
from tuner.cost.step_time import missing_link
from tuner.measurement import Measurement
from tuner.study import Probe, Study


def repriced(study: Study) -> Study:
    """The study with all that was emulated at today's rates, so that it can be compared."""
    found = [(probe, at_todays_rates(study, probe)) for probe in study.probes]
    if all(measurement is probe.measurement for probe, measurement in found):
        return study
    return replace(study, probes=tuple(replace(probe, measurement=m) for probe, m in found))


def at_todays_rates(study: Study, probe: Probe) -> Measurement | None:
    """What a probe of the study found, emulated steps with communication at today's rates.

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
