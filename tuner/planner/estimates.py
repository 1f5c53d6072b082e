"""Predicts each configuration, and corrects that by what was seen of its like."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from math import inf
from types import MappingProxyType

from tuner.core.configuration import Settings
from tuner.core.measurement import Basis, Fidelity
from tuner.core.quantity import Quantity
from tuner.core.study import Probe, Question, Study, StudyState
from tuner.core.words import describe
from tuner.cost.calibration import Calibration
from tuner.cost.prediction import Prediction, predict, with_overhead
from tuner.dryrun import NotDryRunError, Profile, plan_dry_runs, told
from tuner.dryrun.plan import PACKAGES
from tuner.guard.faults import Wrong
from tuner.planner import verdicts
from tuner.planner.corrections import Corrections, accident_text, corrections, dry_run_classes
from tuner.planner.ranking import complexity
from tuner.space import Space, enumerate_space
from tuner.text import Same, size_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Settings with what is predicted of them."""

    settings: Settings
    """What they are."""
    prediction: Prediction
    """Their memory and speed."""
    probe: Probe | None = None
    """The probe whose dry run says what they need; ``None`` where that is arithmetic."""
    factor: float = 1.0
    """What the predicted step time was multiplied by, for what probes took that ran steps."""
    near: float = 0.0
    """Of a time that was corrected by other studies: how alike the nearest settings are that they
    measured, 1 if equal; see :mod:`tuner.planner.similar`."""

    @property
    def is_dry_run(self) -> bool:
        """Tells whether their memory is from a dry run."""
        return self.prediction.basis is Basis.DRY_RUN

    @property
    def step_time(self) -> Quantity:
        """Seconds of an optimizer step."""
        return self.prediction.step_time_s

    @property
    def seconds(self) -> float:
        """The step time's value; infinite when unknown."""
        return inf if self.step_time.value is None else self.step_time.value

    @property
    def expected_bytes(self) -> int:
        """Memory that must be free on a device, as far as the best estimate goes."""
        return int(self.prediction.needed_bytes.value or 0.0)

    @property
    def needed_bytes(self) -> int:
        """Memory that must be free on a device, at the upper end of the interval."""
        return int(self.prediction.needed_bytes.high or 0.0)

    @property
    def may_fit(self) -> bool:
        """Tells whether they are expected to fit."""
        return self.prediction.fits

    @property
    def fits(self) -> bool:
        """Tells whether they fit at the upper end of the interval too."""
        return self.may_fit and self.needed_bytes <= self.prediction.limit_bytes

    @property
    def fits_by_no_means(self) -> bool:
        """Tells whether they do not fit even at the lower end of the interval."""
        return (self.prediction.needed_bytes.low or 0.0) > self.prediction.limit_bytes


def corrected(found: Estimate, seen: Corrections) -> Estimate:
    """An estimate after what was seen of settings like these."""
    factor, why = seen.factor(found.settings), seen.why_not(found.settings)
    overhead = seen.overhead_bytes(found.settings)
    if factor == 1.0 and not why and overhead is None:
        return found
    return _off_by(Same(found), factor, why, overhead)


# One more probe changes what is known of few settings.
@lru_cache(maxsize=8192)
def _off_by(key: Same[Estimate], factor: float, why: str, overhead_bytes: int | None) -> Estimate:
    """An estimate that is off by a factor, and of settings that are no answer if there is a why."""
    found, prediction = key.value, key.value.prediction
    if overhead_bytes is not None:
        prediction = with_overhead(prediction, overhead_bytes)
    if factor != 1.0 and prediction.step_time_s.value is not None:
        prediction = replace(
            prediction,
            step_time_s=prediction.step_time_s.scaled(factor),
            tokens_per_s_per_gpu=prediction.tokens_per_s_per_gpu.scaled(1 / factor),
        )
    if why and prediction.fits:
        prediction = replace(prediction, fits=False, why=why)
    return replace(found, prediction=prediction, factor=factor)


# Part of a need by which another may exceed it and is named instead because it was dry-run:
# arithmetic errs by as much.
ALIKE = 0.01

# Why all settings of a script are without a prediction: it is of the probe program's step, and only
# orders what is tried.
OF_A_SCRIPT = "nothing is predicted of a script of one's own"


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Everything that is predicted for a study, from the dry runs that its probes name."""

    study: Study
    """Whose, with its predicted probes only."""
    space: Space
    """Its legal settings."""
    limit_bytes: int
    """Bytes that one device may need."""
    profiles: Mapping[Settings, tuple[Profile, Probe]]
    """What dry runs say, by class."""
    refused: Mapping[Settings, Probe]
    """Classes that their dry run showed not to run: nothing is predicted of them."""
    accidents: Mapping[Settings, Probe] = field(default_factory=dict)
    """Classes whose dry run had an accident in this asking, which tries it no second time."""
    estimates: Mapping[Settings, Estimate] = field(default_factory=dict)
    """Every legal settings whose memory is known but those of refused classes, in the space's
    order."""
    uncovered: Mapping[str, tuple[Settings, ...]] = field(default_factory=dict)
    """Legal settings whose memory the cost model does not cover, by the reason."""
    wrong: Mapping[Settings, Wrong] = field(default_factory=dict)
    """Legal settings that train something else, or may well: they are no answers."""
    wrong_ones: tuple[Estimate, ...] = ()
    """What is predicted of these by arithmetic."""
    checked: Callable[[Settings], bool] = lambda _: False
    """Whether each of the settings' knobs was seen to train what it should."""
    left_out: tuple[Estimate, ...] = ()
    """Those of refused classes, by arithmetic that they do not hold to."""

    @cached_property
    def timed(self) -> tuple[Estimate, ...]:
        """Lists those with a known speed, fastest first; equal ones in the space's order."""
        known = (e for e in self.estimates.values() if e.step_time.value is not None)
        return tuple(sorted(known, key=lambda e: e.seconds))

    @cached_property
    def fitting(self) -> tuple[Estimate, ...]:
        """Lists those that fit at the upper end of their memory too, fastest first."""
        return tuple(e for e in self.timed if e.fits)

    @cached_property
    def promising(self) -> tuple[Estimate, ...]:
        """Lists those that fit, or may and whose layout can still be dry-run; fastest first."""
        return tuple(filter(self._is_promising, self.timed))

    @cached_property
    def untimed(self) -> tuple[Estimate, ...]:
        """Lists, where no speed is known, the largest micro-batches of each layout that are
        promising.

        Classes with fewer knobs off their default come first; equal ones in the space's order.
        """
        if self.timed:
            return ()
        largest: dict[Settings, Estimate] = {}
        for found in filter(self._is_promising, self.estimates.values()):
            key, size = found.settings.settings_class, found.settings.micro_batch_size
            if key not in largest or size > largest[key].settings.micro_batch_size:
                largest[key] = found
        return tuple(sorted(largest.values(), key=lambda e: complexity(e.settings)))

    def _is_promising(self, found: Estimate) -> bool:
        return found.fits or (found.may_fit and not self.is_settled(found.settings))

    @cached_property
    def smallest(self) -> Estimate | None:
        """The one that is expected to need least, or one that was dry-run and needs no more than
        :data:`ALIKE` beyond that; ``None`` when nothing is predicted.
        """
        least = min(self.estimates.values(), key=_by_need, default=None)
        if least is None:
            return None
        most = least.expected_bytes * (1 + ALIKE)
        alike = (e for e in self.estimates.values() if e.expected_bytes <= most and e.is_dry_run)
        return min(alike, key=_by_need, default=least)

    @cached_property
    def is_hopeless(self) -> bool:
        """Tells whether nothing fits by far, so that dry runs of more classes would not change
        that.
        """
        known = self.estimates.values()
        return bool(known) and all(e.fits_by_no_means for e in known)

    @cached_property
    def what_is_wrong(self) -> str:
        """Why all that is predicted to fit trains something else; empty where something does not,
        or nothing would fit anyway."""
        if any(e.may_fit for e in self.estimates.values()):
            return ""
        fitting = (e.settings for e in self.wrong_ones if e.may_fit)
        return "; ".join(dict.fromkeys(self.wrong[one].why for one in fitting))

    @property
    def unknown(self) -> str:
        """Why no speed is known, so that none is the fastest; empty when some are."""
        return "" if self.timed else self._no_rate

    @property
    def at_assumed_rates(self) -> bool:
        """Says if times are known from other studies alone, for want of rates to predict by."""
        return bool(self.timed) and bool(self._no_rate)

    @cached_property
    def _no_rate(self) -> str:
        if not self.estimates:
            return ""
        settings = next(iter(self.estimates))
        return _why_no_speed(self.study.question, settings, self.study.calibration)

    def is_settled(self, settings: Settings) -> bool:
        """Tells whether a dry run can say no more about these settings."""
        return settings.settings_class in self.profiles or bool(self.why_no_dry_run(settings))

    def why_no_dry_run(self, settings: Settings) -> str:
        """Why the class of these settings cannot be dry-run now; empty if it can."""
        if accident := self.accidents.get(settings.settings_class):
            return accident_text(accident)
        plan = self._plan(settings)
        return plan if isinstance(plan, str) else ""

    def dry_runs_of(self, settings: Settings) -> int:
        """How many dry runs show the class of these settings; none where it has none."""
        plan = self._plan(settings)
        return 0 if isinstance(plan, str) else plan

    def _plan(self, settings: Settings) -> int | str:
        asked = _EstimateKey(self._identity, 0, "", self.study.question)
        return _dry_runs_of(asked, settings.settings_class)

    def why_no_dry_runs(self) -> str:
        """Why no class was dry-run; empty when that is not known, or was not tried yet."""
        if all(not self.is_settled(settings) for settings in self.estimates):
            return self.study.reason if self.study.state is StudyState.DONE else ""
        return next(filter(None, map(self.why_no_dry_run, self.estimates)), "")

    def notes(self, found: Estimate) -> tuple[str, ...]:
        """Lists what a reader should know of the figures of dry-run configurations."""
        profile = self.profiles.get(found.settings.settings_class)
        return told(profile[0].notes) if profile else ()

    @cached_property
    def _identity(self) -> str:
        return self.study.question.identity

    def smallest_need(self, *, named: bool = True) -> str:
        """Says what would be needed, where nothing fits; ``named``: and by which configuration."""
        least = self.smallest
        if least is None:
            return ""
        basis = f"probe #{least.probe.id}" if least.probe else "by arithmetic"
        whose = f", of {describe(least.settings)} ({basis})" if named else ""
        return (
            f"the smallest need predicted is {size_text(least.expected_bytes)} on one device"
            f"{whose}; the limit is {size_text(self.limit_bytes)}"
        )


def forecast(study: Study) -> Forecast:
    """Everything that is predicted for a study; a pure function of it, kept for what is asked of
    the same study next.

    Raises:
        UsageError: the question has no legal settings.
    """
    return _forecast(Same(study))


@lru_cache(maxsize=4)
def _forecast(key: Same[Study]) -> Forecast:
    whole, study = key.value, key.value.at(Fidelity.PREDICTED)
    limit = study.terms.limit_bytes(study.question.cluster)
    known = dry_run_classes(study)
    asked = _asked(study, limit)
    every, uncovered = _by_arithmetic(asked)
    wrong = verdicts.wrong_of(whole, _space(asked).legal)
    estimates = {
        e.settings: _with_dry_run(e, asked, known.profiles)
        for e in every
        if e.settings.settings_class not in known.refused and e.settings not in wrong
    }
    seen = Corrections()
    if whole is not study or whole.past:
        seen = corrections(whole, {s: e.seconds for s, e in estimates.items()})
        estimates = {s: corrected(e, seen) for s, e in estimates.items()}
    if study.past and not seen.factors:  # its own probes are nearer than those of others
        from tuner.planner.similar import transferred  # imports NumPy

        estimates = dict(transferred(study, estimates))
    return Forecast(
        study=study,
        space=_space(asked),
        limit_bytes=limit,
        profiles=known.profiles,
        refused=known.refused,
        accidents=known.accidents,
        estimates=estimates,
        uncovered=uncovered,
        wrong=wrong,
        wrong_ones=tuple(
            _with_dry_run(e, asked, known.profiles) for e in every if e.settings in wrong
        ),
        checked=lambda settings: verdicts.is_checked(whole, settings),
        left_out=tuple(e for e in every if e.settings.settings_class in known.refused),
    )


def _by_need(found: Estimate) -> tuple[int, str]:
    return found.expected_bytes, str(found.settings)


def _why_no_speed(question: Question, settings: Settings, calibration: Calibration | None) -> str:
    """Why the speed of some settings is unknown; empty when it is known."""
    found = _estimate(_EstimateKey("", _NO_LIMIT, "", question, calibration), settings)
    return "" if found.step_time.value is not None else found.prediction.why


# Bytes that nothing exceeds: a prediction says first that settings do not fit.
_NO_LIMIT = 2**62


# Whether the packages are there is for those to say who make dry runs.
_ANY_VERSIONS = dict.fromkeys((*PACKAGES, "torchao"), "")


@dataclass(frozen=True, slots=True)
class _EstimateKey:
    """A question under a limit, as a key: questions hold mappings, and cannot be one."""

    identity: str
    limit_bytes: int
    calibrated_at: str
    question: Question = field(compare=False)
    calibration: Calibration | None = field(default=None, compare=False)


def _asked(study: Study, limit_bytes: int) -> _EstimateKey:
    rates, question = study.calibration, study.question
    measured = f"{rates.at} {rates.cluster}" if rates else ""
    return _EstimateKey(question.identity, limit_bytes, measured, question, rates)


# One study is planned and answered several times in a process, and its arithmetic is the same.
@lru_cache(maxsize=8)
def _by_arithmetic(
    asked: _EstimateKey,
) -> tuple[tuple[Estimate, ...], Mapping[str, tuple[Settings, ...]]]:
    """Predicts those that are covered, and sorts the others by the reason."""
    if asked.question.script is not None:
        return (), MappingProxyType({OF_A_SCRIPT: _space(asked).legal})
    covered: list[Estimate] = []
    others: dict[str, tuple[Settings, ...]] = {}
    for settings in _space(asked).legal:
        found = _estimate(asked, settings)
        if found.prediction.needed_bytes.value is not None:
            covered.append(found)
        else:
            why = found.prediction.why
            others[why] = (*others.get(why, ()), settings)
    return tuple(covered), MappingProxyType(others)


@lru_cache(maxsize=8)
def _space(asked: _EstimateKey) -> Space:
    return enumerate_space(asked.question)


@lru_cache(maxsize=1024)
def _dry_runs_of(asked: _EstimateKey, settings: Settings) -> int | str:
    """How many dry runs show a class, or why none does."""
    question = asked.question
    try:
        plan = plan_dry_runs(
            question.workload,
            question.cluster,
            question.framework,
            settings,
            _ANY_VERSIONS,
        )
    except NotDryRunError as error:
        return str(error)
    return len(plan.requests)


def _with_dry_run(
    by_arithmetic: Estimate,
    asked: _EstimateKey,
    profiles: Mapping[Settings, tuple[Profile, Probe]],
) -> Estimate:
    settings = by_arithmetic.settings
    found = profiles.get(settings.settings_class)
    if found is None:
        return by_arithmetic
    return _estimate(asked, settings, *found)


def _estimate(
    asked: _EstimateKey,
    settings: Settings,
    profile: Profile | None = None,
    probe: Probe | None = None,
) -> Estimate:
    question = asked.question
    prediction = predict(
        question.workload,
        question.cluster,
        question.framework,
        settings,
        limit_bytes=asked.limit_bytes,
        profile=profile,
        calibration=asked.calibration,
    )
    return Estimate(settings=settings, prediction=prediction, probe=probe)
