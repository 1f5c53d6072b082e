"""Facts of one probe in words, as commands and pages list them."""

from collections.abc import Iterator, Mapping
from statistics import median

from tuner.core.measurement import Fidelity, Measurement
from tuner.core.study import Probe, Study
from tuner.core.words import rank_word, rate_text
from tuner.planner import speed_of
from tuner.planner.probes import step_time_of
from tuner.text import time_text

# What stands behind figures of each fidelity.
FIDELITIES: Mapping[Fidelity, str] = {
    Fidelity.MEASURED: "all ranks were run",
    Fidelity.EMULATED: "memory and computing of rank 0 alone, communication by arithmetic",
    Fidelity.REHEARSED: "memory of rank 0 by torch's CUDA allocator on no GPU, time by arithmetic",
    Fidelity.PREDICTED: "tensors by a dry run, what is beside them by arithmetic",
}


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
