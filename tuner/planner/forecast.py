"""Predicts each configuration, and corrects that by what was seen of its like."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import inf
from statistics import median
from types import MappingProxyType

from tuner.core.configuration import Settings
from tuner.core.evaluation import Evaluation
from tuner.core.measurement import PROBED, Basis, Fidelity, Outcome
from tuner.core.study import Probe, ProbeState, Question, Study, StudyState
from tuner.cost.calibration import Calibration
from tuner.cost.constants import Costs, experts_of
from tuner.cost.prediction import border_notes, over_bytes, predict, too_large_text
from tuner.dryrun import NotDryRunError, Profile, plan_dry_runs, told
from tuner.dryrun.plan import ALL_PACKAGES
from tuner.guard.faults import Wrong, is_checked, wrong_of
from tuner.planner.knowledge import TEACHES_NOTHING, Knowledge, learned, overheads
from tuner.planner.ranking import complexity
from tuner.planner.spending import probes_of_request
from tuner.space import Space, enumerate_space
from tuner.text import kept, size_text

# Part of a need by which another may exceed it and is named instead because it was dry-run:
# arithmetic errs by as much.
ALIKE = 0.01

# The reason for which all configurations of a script are without a prediction: it is of the probe
# program's step, and only orders what is tried.
OF_A_SCRIPT = "nothing is predicted of a script of one's own"

# Ends of a dry run that may say more of the machine than of the configuration. A later request
# wants it again, and gets the same at once where it is kept.
OF_THE_MACHINE = TEACHES_NOTHING | {Outcome.TIMEOUT, Outcome.CRASHED}


# -- dry runs ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRuns:
    """Results of a study's dry runs by layout."""

    profiles: Mapping[Settings, tuple[Profile, Probe]]
    refused: Mapping[Settings, Probe]
    accidents: Mapping[Settings, Probe]


def dry_runs_of(study: Study) -> DryRuns:
    """Collects the results of each layout's dry runs; the last holds, and a profile over all."""
    profiles: dict[Settings, tuple[Profile, Probe]] = {}
    refused: dict[Settings, Probe] = {}
    accidents: dict[Settings, Probe] = {}
    now = {probe.id for probe in probes_of_request(study)}
    for probe in sorted(study.probes, key=lambda p: p.place):
        found = probe.measurement
        if probe.state is not ProbeState.DONE or found is None:
            continue
        key = probe.request.settings.layout
        if found.outcome is Outcome.OK:
            # A dry run that another version wrote is not there: its layout is dry-run anew.
            dry_run = study.dry_runs.get(found.dry_run)
            if dry_run is not None and dry_run.profile is not None:
                profiles[key] = (dry_run.profile, probe)
        elif found.outcome not in OF_THE_MACHINE:
            refused[key] = probe
        elif probe.id in now:
            # Of these, only what is kept is the stack's own word: it takes too much CPU time.
            (refused if found.dry_run else accidents)[key] = probe
    refused = {key: probe for key, probe in refused.items() if key not in profiles}
    accidents = {k: p for k, p in accidents.items() if k not in profiles and k not in refused}
    return DryRuns(profiles=profiles, refused=refused, accidents=accidents)


# -- what probes have shown -------------------------------------------------------------------


class Corrections:
    """Corrections of predictions by what a question's probes have shown."""

    def __init__(self, study: Study, predicted_s: Mapping[Settings, float]) -> None:
        there = {probe.request.fidelity for probe in study.probes}
        self.seen = {fidelity: learned(study, fidelity) for fidelity in PROBED if fidelity in there}
        """What probes of each fidelity taught, the stronger first."""
        taken: dict[Settings, float] = {}
        for known in reversed(self.seen.values()):  # what was measured replaces what was emulated
            for settings, found in known.findings.items():
                # Steps that were timed on a device of another kind tell no time.
                emulations = (p.measurement.emulation for p in found.probes if p.measurement)
                is_own = not any(e is not None and e.stands_in for e in emulations)
                if found.seconds < inf and is_own:
                    taken[settings] = found.seconds
        ratios: dict[Settings, list[float]] = defaultdict(list)
        for settings, seconds in taken.items():
            expected = predicted_s.get(settings, inf)
            if 0 < expected < inf:
                ratios[settings.layout].append(seconds / expected)
        self.factors = {key: median(all_of_it) for key, all_of_it in ratios.items()}
        """Seconds taken over seconds predicted, by layout."""
        self.typical = median(self.factors.values()) if self.factors else 1.0
        """The same for layouts of which no step was timed."""
        self.overheads = overheads(study)

    def applied(self, found: Evaluation) -> Evaluation:
        settings, outside = found.settings, self.overheads.of(found.settings)
        factor = self.factors.get(settings.layout, self.typical)
        why = self.why_not(settings)
        unchanged = factor == 1.0 and not why and outside is None
        return found if unchanged else _corrected(found, factor, why, outside)

    def why_not(self, settings: Settings) -> str:
        """Tells against a configuration, whatever is predicted; the strongest fidelity decides."""
        for fidelity, known in self.seen.items():
            finding = known.findings.get(settings)
            if finding is not None and known.fits(finding):
                return ""
            if known.is_infeasible(settings):
                return f"did not fit when they, or smaller ones, were {fidelity}"
            closed = known.closed_layouts.get(settings.layout)
            if closed := closed or known.closed.get(settings):
                return f"ended as {closed.words} when {fidelity}"
        return ""


# One more probe changes what is known of few configurations.
@kept(maxsize=8192)
def _corrected(found: Evaluation, factor: float, why: str, outside_bytes: int | None) -> Evaluation:
    if outside_bytes is not None:
        found = _with_outside(found, outside_bytes)
    if factor != 1.0 and found.step_time_s.value is not None:
        found = replace(
            found,
            step_time_s=found.step_time_s.scaled(factor),
            tokens_per_s_per_gpu=found.tokens_per_s_per_gpu.scaled(1 / factor),
        )
    if why and found.fits:
        found = replace(found, fits=False, why=why)
    return replace(found, factor=factor)


def _with_outside(found: Evaluation, outside_bytes: int) -> Evaluation:
    more = outside_bytes - found.outside_bytes
    if not more or found.needed_bytes.value is None or found.fits == found.too_large:
        return found  # what is refused whatever it needs stays so
    needed = found.needed_bytes.changed(lambda end: end + more)
    now = too_large_text(needed, found.limit_bytes)
    unknown = found.why if not found.too_large else found.why.partition("; ")[2]
    return replace(
        found,
        outside_bytes=outside_bytes,
        device_bytes=found.device_bytes.changed(lambda end: end + more),
        needed_bytes=needed,
        over_bytes=over_bytes(needed, found.limit_bytes),
        fits=not now,
        why="; ".join(filter(None, (now, unknown))),
        notes=(
            *border_notes(needed, found.limit_bytes),
            *found.notes[len(border_notes(found.needed_bytes, found.limit_bytes)) :],
            "context and communicators are counted as in probes on these devices:"
            f" {size_text(outside_bytes)}",
        ),
    )


# -- the forecast -----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Everything that is predicted for a study, from the dry runs that its probes name."""

    study: Study  # with its predicted probes only
    space: Space
    limit_bytes: int  # bytes that one device may need
    profiles: Mapping[Settings, tuple[Profile, Probe]]  # what dry runs say, by layout
    refused: Mapping[Settings, Probe]
    """Layouts that their dry run showed not to run: nothing is predicted of them."""
    accidents: Mapping[Settings, Probe]
    """Layouts whose dry run had an accident in this request, which tries it no second time."""
    estimates: Mapping[Settings, Evaluation]
    """Every legal configuration whose memory is known but those of refused layouts, in the space's
    order."""
    uncovered: Mapping[str, tuple[Settings, ...]]
    """Legal configurations whose memory the cost model does not cover, by the reason."""
    wrong: Mapping[Settings, Wrong]
    """Legal configurations that train something else, or may well: they are no answers."""
    wrong_ones: tuple[Evaluation, ...]  # what is predicted of these by arithmetic
    checked: Callable[[Settings], bool]
    """True where each of the knobs was seen to train what it should."""
    left_out: tuple[Evaluation, ...]
    """Those of refused layouts, by arithmetic that they do not hold to."""
    asked: "Asked"

    @cached_property
    def timed(self) -> tuple[Evaluation, ...]:
        """Lists those with a known speed, fastest first; equal ones in the space's order."""
        known = (e for e in self.estimates.values() if e.step_time_s.value is not None)
        return tuple(sorted(known, key=lambda e: e.seconds))

    @cached_property
    def fitting(self) -> tuple[Evaluation, ...]:
        """Lists those that fit at the upper end of their memory too, fastest first."""
        return tuple(e for e in self.timed if e.fits_surely)

    @cached_property
    def promising(self) -> tuple[Evaluation, ...]:
        """Lists those that fit, or may and whose layout can still be dry-run; fastest first."""
        return tuple(filter(self._is_promising, self.timed))

    @cached_property
    def untimed(self) -> tuple[Evaluation, ...]:
        """Lists, where no speed is known, the largest micro-batches of each layout that are
        promising.

        Layouts with fewer knobs off their default come first; equal ones in the space's order.
        """
        if self.timed:
            return ()
        question = self.study.question
        largest: dict[Settings, Evaluation] = {}
        for found in filter(self._is_promising, self.estimates.values()):
            key, size = found.settings.layout, found.settings.micro_batch_size
            if key not in largest or size > largest[key].settings.micro_batch_size:
                largest[key] = found
        return tuple(sorted(largest.values(), key=lambda e: complexity(question, e.settings)))

    def _is_promising(self, found: Evaluation) -> bool:
        return found.fits_surely or (bool(found.fits) and not self.is_settled(found.settings))

    @cached_property
    def smallest(self) -> Evaluation | None:
        """The one that is expected to need least, or one that was dry-run and needs no more than
        :data:`ALIKE` beyond that; ``None`` when nothing is predicted."""
        by_need = sorted(self.estimates.values(), key=lambda e: (e.expected_bytes, str(e.settings)))
        if not by_need:
            return None
        most = by_need[0].expected_bytes * (1 + ALIKE)
        alike = (e for e in by_need if e.expected_bytes <= most and e.is_dry_run)
        return next(alike, by_need[0])

    @cached_property
    def is_hopeless(self) -> bool:
        """True where nothing fits by far, so that dry runs of more layouts would not change it."""
        known = self.estimates.values()
        return bool(known) and all((e.needed_bytes.low or 0.0) > e.limit_bytes for e in known)

    @cached_property
    def what_is_wrong(self) -> str:
        """Says why all that is predicted to fit trains something else; empty where something does
        not, or nothing would fit anyway."""
        if any(e.fits for e in self.estimates.values()):
            return ""
        fitting = (e.settings for e in self.wrong_ones if e.fits)
        return "; ".join(dict.fromkeys(self.wrong[one].why for one in fitting))

    @property
    def unknown(self) -> str:
        """Says why no speed is known, so that none is the fastest; empty when some are."""
        return "" if self.timed else self._no_rate

    @property
    def at_assumed_rates(self) -> bool:
        """True where times are known from other studies alone, for want of rates to predict by."""
        return bool(self.timed) and bool(self._no_rate)

    @cached_property
    def _no_rate(self) -> str:
        if not self.estimates:
            return ""
        question = self.study.question
        if question.script is not None and not question.workload.has_arithmetic:
            return "nothing is predicted of the speed of a script whose model is not named"
        # A prediction says first that a configuration does not fit: bytes that nothing exceeds.
        settings = next(iter(self.estimates))
        traced = self.profiles.get(settings.layout, ())
        found = estimate(self.asked, 2**62, settings, *traced)
        return "" if found.step_time_s.value is not None else found.why

    def is_settled(self, settings: Settings) -> bool:
        """True where a dry run can say no more about a configuration."""
        return settings.layout in self.profiles or bool(self.why_no_dry_run(settings))

    def why_no_dry_run(self, settings: Settings) -> str:
        """Says why the layout of a configuration cannot be dry-run now; empty if it can."""
        if accident := self.accidents.get(settings.layout):
            assert accident.measurement is not None
            detail = f" ({accident.measurement.detail})" if accident.measurement.detail else ""
            ended = accident.measurement.outcome.words
            return f"the dry run of their layout ended as {ended}{detail}"
        plan = _planned(self.asked, settings.layout)
        return plan if isinstance(plan, str) else ""

    def dry_runs_of(self, settings: Settings) -> int:
        """How many dry runs show the layout of a configuration; none where it has none."""
        plan = _planned(self.asked, settings.layout)
        return 0 if isinstance(plan, str) else plan

    def why_no_dry_runs(self) -> str:
        """Says why no layout was dry-run; empty when that is not known, or was not tried yet."""
        if all(not self.is_settled(settings) for settings in self.estimates):
            return self.study.reason if self.study.state is StudyState.DONE else ""
        return next(filter(None, map(self.why_no_dry_run, self.estimates)), "")

    def notes(self, found: Evaluation) -> tuple[str, ...]:
        """What to know of the dry run of a configuration's layout, if there is one."""
        profile = self.profiles.get(found.settings.layout)
        return told(profile[0].notes) if profile else ()


@kept(maxsize=4)
def forecast(study: Study) -> Forecast:
    """Everything that is predicted for a study; a pure function of it, kept for what is asked of
    the same study next."""
    whole, study = study, study.at(Fidelity.PREDICTED)
    limit = study.limits.limit_bytes(study.question.cluster)
    known, asked = dry_runs_of(study), Asked(study.question, study.calibration)
    space = enumerate_space(study.question)
    every, uncovered = _by_arithmetic(asked, limit)
    wrong = wrong_of(whole, space.legal)

    def with_dry_run(found: Evaluation) -> Evaluation:
        profile = known.profiles.get(found.settings.layout)
        return estimate(asked, limit, found.settings, *profile) if profile else found

    estimates: dict[Settings, Evaluation] = {}
    if study.question.workload.is_traced:  # which only dry runs know: layouts that were dry-run
        estimates = {
            settings: estimate(asked, limit, settings, *known.profiles[settings.layout])
            for settings in space.legal
            if settings.layout in known.profiles and settings not in wrong
        }
    estimates |= {
        e.settings: with_dry_run(e)
        for e in every
        if e.settings.layout not in known.refused and e.settings not in wrong
    }
    is_corrected = False
    if whole is not study or whole.past:
        seen = Corrections(whole, {s: e.seconds for s, e in estimates.items()})
        estimates = {s: seen.applied(e) for s, e in estimates.items()}
        is_corrected = bool(seen.factors)
    if study.past and not is_corrected:  # its own probes are nearer than those of others
        from tuner.planner.similar import past_of, transferred  # imports NumPy

        estimates = dict(transferred(study, estimates, past_of(study.past, study.calibration)))
    if any(probe.request.fidelity is Fidelity.REHEARSED for probe in whole.probes):
        of_ranks = learned(whole, Fidelity.REHEARSED)
        if whole.question.script is not None and whole.question.workload.has_arithmetic:
            for one in (*of_ranks.findings, *of_ranks.too_large):  # times of the built-in step
                built_in = estimate(asked, 2**62, one)
                estimates[one] = Evaluation(
                    settings=one,
                    step_time_s=built_in.step_time_s,
                    tokens_per_s_per_gpu=built_in.tokens_per_s_per_gpu,
                )
        estimates = as_rehearsed(estimates, of_ranks)
    return Forecast(
        study=study,
        space=space,
        limit_bytes=limit,
        profiles=known.profiles,
        refused=known.refused,
        accidents=known.accidents,
        estimates=estimates,
        uncovered={
            why: left
            for why, found in uncovered.items()
            if (left := tuple(one for one in found if one not in estimates))
        },
        wrong=wrong,
        wrong_ones=tuple(with_dry_run(e) for e in every if e.settings in wrong),
        checked=lambda settings: is_checked(whole, settings),
        left_out=tuple(e for e in every if e.settings.layout in known.refused),
        asked=asked,
    )


def as_rehearsed(
    estimates: Mapping[Settings, Evaluation], seen: Knowledge
) -> dict[Settings, Evaluation]:
    """Estimates with memory as rehearsals have shown it. Times stay predicted, and what did not run
    there may run on devices."""
    found = dict(estimates)
    why = "did not fit when they, or smaller ones, were rehearsed"
    for settings, one in estimates.items():
        if seen.is_infeasible(settings):
            found[settings] = replace(one, fits=False, why=why)
    for settings, one in {**seen.findings, **seen.too_large}.items():
        mine = found.get(settings, Evaluation(settings=settings))
        if one.outcome is Outcome.OOM and mine.expected_bytes >= one.most_bytes:
            continue  # what it needs at least says less than what is predicted
        needed, limit, ran = one.needed_bytes, seen.limit_bytes, one.probes[-1].measurement
        found[settings] = replace(
            mine,
            outcome=None if settings in seen.findings else one.outcome,
            fits=one.fits,
            over_bytes=one.over_bytes,
            why="" if one.fits else too_large_text(needed, limit) or why,
            needed_bytes=needed,
            allocated_bytes=one.allocated_bytes,
            reserved_bytes=one.reserved_bytes,
            device_bytes=one.device_bytes,
            outside_bytes=one.outside_bytes,
            limit_bytes=limit,
            breakdown=one.breakdown,
            by_phase=ran.memory.by_phase if ran and ran.memory else {},
            basis=Basis.REHEARSED,
            probes=one.probes,
            notes=(),
        )
    return found


class Asked:
    """A question and rates as a key of caches, which are asked for thousands of settings."""

    def __init__(
        self, question: Question, calibration: Calibration | None, experts: tuple[Costs, ...] = ()
    ) -> None:
        self.question, self.calibration = question, calibration
        self.experts = experts or experts_of(question.framework.name)
        self._key = (question, calibration, experts)
        self._hash = hash(self._key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Asked) and self._key == other._key


# One study is planned and answered several times in a process, and its arithmetic is the same.
@lru_cache(maxsize=8)
def _by_arithmetic(
    asked: Asked, limit_bytes: int
) -> tuple[tuple[Evaluation, ...], Mapping[str, tuple[Settings, ...]]]:
    """Predicts those that are covered, and sorts the others by the reason."""
    legal = enumerate_space(asked.question).legal
    if asked.question.script is not None:
        return (), MappingProxyType({OF_A_SCRIPT: legal})
    covered: list[Evaluation] = []
    others: dict[str, tuple[Settings, ...]] = {}
    for settings in legal:
        found = estimate(asked, limit_bytes, settings)
        if found.needed_bytes.value is not None:
            covered.append(found)
        else:
            others[found.why] = (*others.get(found.why, ()), settings)
    return tuple(covered), MappingProxyType(others)


@lru_cache(maxsize=1024)
def _planned(asked: Asked, settings: Settings) -> int | str:
    question = asked.question
    try:
        plan = plan_dry_runs(
            *question.job,
            settings,
            # If the packages are there is for those to say who make dry runs.
            dict.fromkeys(ALL_PACKAGES, ""),
        )
    except NotDryRunError as error:
        return str(error)
    return len(plan.requests)


def estimate(
    asked: Asked,
    limit_bytes: int,
    settings: Settings,
    profile: Profile | None = None,
    probe: Probe | None = None,
) -> Evaluation:
    found = predict(
        *asked.question.job,
        settings,
        limit_bytes=limit_bytes,
        profile=profile,
        calibration=asked.calibration,
    )
    return replace(found, probes=(probe,)) if probe else found
