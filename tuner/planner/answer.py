"""The suggestion that a study's probes support so far."""

from collections.abc import Sequence

from tuner.core.answer import GIB, MOST_ALTERNATIVES, Candidate, Guard, Suggestion
from tuner.core.measurement import Fidelity, Memory
from tuner.core.quantity import Quantity
from tuner.core.study import Study
from tuner.model.shape import shown_workload
from tuner.planner.expected_memory import MemoryOutlook
from tuner.planner.explain_answer import explain
from tuner.planner.explain_probes import others_too, script_guard
from tuner.planner.finalists import guard_of
from tuner.planner.findings import Finding
from tuner.planner.knowledge import Knowledge, learned
from tuner.planner.predicted_answer import (
    foreseen_answer,
    has_predicted_answer,
    predicted_answer,
    standing,
)
from tuner.planner.probes import outcomes
from tuner.planner.ranking import Choice, choose, pareto
from tuner.planner.spending import cost
from tuner.planner.step_times import fair
from tuner.planner.timing import speed_of


def answer(study: Study) -> Suggestion:
    """The answer from what is known so far, at its terms' fidelity; a pure function of the study.

    Until a probe shows settings that fit, the answer to be measured or emulated is what is
    predicted, and says so: ``best.basis`` is ``None`` only where memory was measured or emulated.
    ``best`` is ``None`` where nothing is known to fit, or no speed is known; the explanation says
    why.

    Raises:
        UsageError: the question has no legal settings.
    """
    if study.terms.fidelity is Fidelity.PREDICTED:
        return predicted_answer(study)
    known = learned(study, study.terms.fidelity)
    choice = choose(known.fitting, study.terms.tolerance)
    return foreseen_answer(study, known) if choice is None else _probed_answer(study, known, choice)


def is_answered(study: Study) -> bool:
    """Says if :func:`answer` has best settings that stand on what was asked for: on probes, where
    it is to be measured or emulated; on predictions that another asking would not look into again.
    """
    if study.terms.fidelity is Fidelity.PREDICTED:
        return has_predicted_answer(study)
    return bool(learned(study, study.terms.fidelity).fitting)


def why_unprobed(study: Study) -> str:
    """Why a study that is to be measured or emulated has nothing that fits, and how to go on."""
    return " ".join(standing(study, learned(study, study.terms.fidelity)))


def what_trained_wrongly(study: Study) -> str:
    """Why none of what was measured or emulated and fits is the answer; empty where one is, or
    nothing fitted."""
    known = learned(study, study.terms.fidelity)
    return "" if known.fitting else MemoryOutlook(known).what_is_wrong()


def _probed_answer(whole: Study, known: Knowledge, choice: Choice[Finding]) -> Suggestion:
    study = known.study
    others = [f for f in known.fitting if f is not choice.best]
    spent = cost(study)
    return Suggestion(
        study_id=study.id,
        state=str(study.state),
        workload=shown_workload(study.question.workload.as_dict()),
        cluster=study.question.cluster.as_dict(),
        framework=study.question.framework.as_dict(),
        best=_candidate(known, choice.best),
        alternatives=tuple(_candidate(known, f) for f in others[:MOST_ALTERNATIVES]),
        pareto=tuple(_candidate(known, f) for f in pareto(known.fitting)),
        dead_knobs=known.space.dead_knobs,
        legal=len(known.space.legal),
        predicted_to_fit=_predicted_to_fit(known),
        probes=outcomes(study.probes),
        wall_s=spent.wall_s,
        device_s=spent.device_s,
        explanation=(*explain(known, choice), *others_too(whole, known)),
    )


def _candidate(known: Knowledge, finding: Finding) -> Candidate:
    finding = fair(known)[finding.settings]  # it was looked at for its speed
    memories = finding.memories
    return Candidate(
        settings=finding.settings,
        allocated_gib=finding.peak.scaled(1 / GIB),
        needed_gib=_needed(finding).scaled(1 / GIB),
        reserved_gib=_range_gib(finding, [memory.reserved_bytes for memory in memories]),
        device_gib=_range_gib(finding, [memory.device_bytes for memory in memories]),
        limit_gib=known.limit_bytes / GIB,
        breakdown_gib=_breakdown_gib(memories),
        tokens_per_s_per_gpu=speed_of(finding.step_time, known.study.question),
        step_time_s=finding.step_time,
        guard=_guard(known.study, finding),
    )


def _needed(finding: Finding) -> Quantity:
    """Bytes that must be free: allocated, and what lies outside of the allocator."""
    peak, more = finding.peak, finding.overhead_bytes
    ends = [None if end is None else end + more for end in (peak.value, peak.low, peak.high)]
    value, low, high = ends
    return Quantity(value=value, low=low, high=high, provenance=peak.provenance)


def _range_gib(finding: Finding, sizes: Sequence[int]) -> Quantity:
    """The largest of the repetitions, with their range as interval."""
    largest = max(sizes) / GIB
    return Quantity(
        value=largest, low=min(sizes) / GIB, high=largest, provenance=finding.peak.provenance
    )


def _breakdown_gib(memories: Sequence[Memory]) -> dict[str, float]:
    """Returns the breakdown of the repetition that needed most."""
    largest = max(memories, key=lambda memory: memory.allocated_bytes)
    return {name: size / GIB for name, size in largest.by_category.items()}


def _guard(study: Study, finding: Finding) -> Guard:
    if study.question.script is not None:
        return script_guard(study, finding)
    last = finding.probes[-1]
    versions = last.measurement.versions if last.measurement else {}
    return guard_of(study, finding.settings, versions, last.finished_at)


def _predicted_to_fit(known: Knowledge) -> int:
    """Legal settings that fit, as far as probes say, and the corrected estimate for the rest."""
    outlook, is_script = MemoryOutlook(known), known.study.question.script is not None
    return sum(
        s in known.findings or is_script or outlook.expected_bytes(s) <= known.limit_bytes
        for s in known.space.legal
        if s not in known.infeasible
    )
