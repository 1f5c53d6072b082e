"""Whether a script did what its settings say, by what was counted in its steps."""

from collections.abc import Iterable
from dataclasses import replace

from tuner.measurement import RAN, Fidelity, Measurement, Outcome
from tuner.settings import Settings
from tuner.study import Probe, Study
from workers.measuring.records import BadRecord, RankRecord


def check_script_probe(study: Study, settings: Settings, found: Measurement) -> Measurement:
    """The measurement, with the outcome ``knob_inactive`` if the accumulation did not act.

    Backward passes of an optimizer step must be a multiple of its micro-batches, and the same
    multiple as in the study's other probes: a script may make several for each.

    Args:
        study: with its other probes.
        settings: what the script was told.
        found: what its probe found; where no passes were counted nothing is judged.
    """
    asked, counted = settings.gradient_accumulation_steps, found.tracked_accumulation
    if found.outcome not in RAN or not counted:
        return found
    each, rest = divmod(counted, asked)
    said = f"{counted} backward passes were counted in an optimizer step"
    if rest:
        return _inactive(found, f"gradient_accumulation_steps={asked} did not act: {said}")
    for probe in study.at(Fidelity.MEASURED).probes:
        if (other := _passes_each(probe)) not in (None, each):
            return _inactive(
                found,
                f"gradient_accumulation_steps={asked} did not act: {said}, {each} for each"
                f" micro-batch, and {other} for each in probe #{probe.id}",
            )
    return found


def check_sequences(
    settings: Settings, records: Iterable[RankRecord | BadRecord], found: Measurement
) -> Measurement:
    """The measurement, with the outcome ``wrong_result`` if a rank trained another batch.

    Args:
        settings: what the script was told.
        records: of its ranks, which tell of their sequences or not.
        found: what they make together.
    """
    micro, count = settings.micro_batch_size, settings.gradient_accumulation_steps
    known = (record for record in records if isinstance(record, RankRecord))
    for record in known if found.outcome in RAN else ():
        told = record.sequences
        if told not in (None, micro * count):
            detail = (
                f"rank {record.rank} trained {told} sequences in an optimizer step, and"
                f" {micro} x {count} were asked for: that is another global batch"
            )
            return replace(found, outcome=Outcome.WRONG_RESULT, detail=detail)
    return found


def _passes_each(probe: Probe) -> int | None:
    """Backward passes for each micro-batch of a probe; ``None`` where it does not tell."""
    found = probe.measurement
    if found is None or found.outcome is not Outcome.OK or not found.tracked_accumulation:
        return None
    return found.tracked_accumulation // probe.request.settings.gradient_accumulation_steps


def _inactive(found: Measurement, why: str) -> Measurement:
    return replace(found, outcome=Outcome.KNOB_INACTIVE, detail=why)
