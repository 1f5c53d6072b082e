"""What to do next in a study: another probe, wait for one, or stop."""

from tuner.framework import FrameworkName
from tuner.measurement import Fidelity
from tuner.planner.budget import remaining_wall_s, spent
from tuner.planner.dry_runs import next_dry_run
from tuner.planner.finals import finals
from tuner.planner.knowledge import Knowledge, learn, probes_of_asking
from tuner.planner.outlook import MemoryOutlook
from tuner.planner.plans import Stop, Wait
from tuner.planner.search import Proposed, propose
from tuner.planner.timing import counts_to_run
from tuner.settings import Settings
from tuner.study import ProbeRequest, ProbeState, Study


def next_probe(study: Study) -> ProbeRequest | Stop | Wait:
    """What to do next; a pure function of the study and of its probes of its terms' fidelity.

    Raises:
        UsageError: the question has no legal settings.
    """
    study = study.at(study.terms.fidelity)
    if any(probe.state is not ProbeState.DONE for probe in study.probes):
        return Wait()
    if study.terms.fidelity is Fidelity.PREDICTED:
        return next_dry_run(study)
    if study.question.framework.name is FrameworkName.NANOTRON:
        return Stop(reason="nanotron's settings cannot be probed here; ask for predictions")
    known = learn(study)
    if why := spent(study):
        return Stop(reason=why) if known.fitting else _nothing(known, why)
    final_probes = finals(known, remaining_wall_s=remaining_wall_s(study))
    remaining = study.terms.max_probes - len(probes_of_asking(study))
    if final_probes and remaining <= len(final_probes):
        return final_probes[0]
    proposed = propose(known)
    if proposed is not None and proposed.gain >= study.terms.tolerance:
        return _request(known, proposed.settings)
    if final_probes:
        return final_probes[0]
    return _stop(known, proposed)


def _request(known: Knowledge, settings: Settings) -> ProbeRequest:
    return ProbeRequest(
        settings=settings,
        fidelity=known.study.terms.fidelity,
        repetition=known.repetitions.get(settings, 0),
        accumulation_counts=counts_to_run(settings.gradient_accumulation_steps),
    )


def _stop(known: Knowledge, proposed: Proposed | None) -> Stop:
    if proposed is not None:
        tolerance = f"{100 * known.study.terms.tolerance:g}%"
        return Stop(reason=f"no probe is expected to gain {tolerance} or more")
    if known.fitting:
        return Stop(reason="every settings that may fit was probed")
    return _nothing(known, "every settings that may fit was probed")


def _nothing(known: Knowledge, reason: str) -> Stop:
    """Nothing was seen to fit."""
    needs = MemoryOutlook(known).smallest_need()
    if not needs or propose(known) is not None:
        return Stop(reason=f"{reason}; none of the settings probed gave a result that fits")
    return Stop(reason="no settings fit", nothing_fits=needs)
