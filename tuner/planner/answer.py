"""The suggestion that a study's probes support so far."""

from collections import Counter
from collections.abc import Sequence

from tuner.measurement import Fidelity, Memory
from tuner.planner.explain import explain
from tuner.planner.guarding import guard_of
from tuner.planner.knowledge import Finding, Knowledge, learn, total_measured
from tuner.planner.other_fidelity import others_too
from tuner.planner.outlook import MemoryOutlook
from tuner.planner.predicted import predicted_answer
from tuner.planner.ranking import choose, pareto
from tuner.planner.timing import speed_of
from tuner.quantity import Quantity
from tuner.study import Study
from tuner.suggestion import GIB, MOST_ALTERNATIVES, Candidate, Guard, Suggestion


def answer(study: Study) -> Suggestion:
    """The answer from what is known so far, at its terms' fidelity; a pure function of the study.

    ``best`` is ``None`` when nothing was seen to fit; the explanation says why.

    Raises:
        UsageError: the question has no legal settings.
    """
    if study.terms.fidelity is Fidelity.PREDICTED:
        return predicted_answer(study)
    return _probed_answer(study)


def _probed_answer(whole: Study) -> Suggestion:
    study = whole.at(whole.terms.fidelity)
    known = learn(study)
    fitting = known.fitting
    choice = choose(fitting, study.terms.tolerance)
    others = [f for f in fitting if choice is None or f is not choice.best]
    wall_s, device_s = total_measured(probe.measurement for probe in study.probes)
    return Suggestion(
        study_id=study.id,
        state=str(study.state),
        workload=study.question.workload.as_dict(),
        cluster=study.question.cluster.as_dict(),
        framework=study.question.framework.as_dict(),
        best=_candidate(known, choice.best) if choice else None,
        alternatives=tuple(_candidate(known, f) for f in others[:MOST_ALTERNATIVES]),
        pareto=tuple(_candidate(known, f) for f in pareto(fitting)),
        dead_knobs=known.space.dead_knobs,
        legal=len(known.space.legal),
        predicted_to_fit=_predicted_to_fit(known),
        probes=_outcomes(study),
        wall_s=wall_s,
        device_s=device_s,
        explanation=(*explain(known, choice), *others_too(whole, known)),
    )


def _candidate(known: Knowledge, finding: Finding) -> Candidate:
    memories = finding.memories
    return Candidate(
        settings=finding.settings,
        allocated_gib=finding.peak.scaled(1 / GIB),
        reserved_gib=_range_gib(finding, [memory.reserved_bytes for memory in memories]),
        device_gib=_range_gib(finding, [memory.device_bytes for memory in memories]),
        limit_gib=known.limit_bytes / GIB,
        breakdown_gib=_breakdown_gib(memories),
        tokens_per_s_per_gpu=speed_of(finding.step_time, known.study.question),
        step_time_s=finding.step_time,
        guard=_guard(known.study, finding),
    )


def _range_gib(finding: Finding, sizes: Sequence[int]) -> Quantity:
    """The largest of the repetitions, with their range as interval."""
    largest = max(sizes) / GIB
    return Quantity(
        value=largest, low=min(sizes) / GIB, high=largest, provenance=finding.peak.provenance
    )


def _breakdown_gib(memories: Sequence[Memory]) -> dict[str, float]:
    """Of the repetition that needed most."""
    largest = max(memories, key=lambda memory: memory.allocated_bytes)
    return {name: size / GIB for name, size in largest.by_category.items()}


def _guard(study: Study, finding: Finding) -> Guard:
    last = finding.probes[-1]
    versions = last.measurement.versions if last.measurement else {}
    return guard_of(study, finding.settings, versions, last.finished_at)


def _predicted_to_fit(known: Knowledge) -> int:
    """Legal settings that fit, as far as probes say, and the corrected estimate for the rest."""
    outlook = MemoryOutlook(known)
    return sum(
        s in known.findings or outlook.expected_bytes(s) <= known.limit_bytes
        for s in known.space.legal
        if not known.is_infeasible(s)
    )


def _outcomes(study: Study) -> dict[str, int]:
    counts = Counter(str(p.measurement.outcome) for p in study.probes if p.measurement)
    return dict(sorted(counts.items()))
