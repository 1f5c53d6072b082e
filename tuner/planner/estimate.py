"""What is predicted of one settings, and how that is corrected by what was seen of its like."""

from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf

from tuner.cost.categories import Basis
from tuner.cost.prediction import Prediction, with_overhead
from tuner.identity_keys import Same
from tuner.planner.corrections import Corrections
from tuner.quantity import Quantity
from tuner.settings import Settings
from tuner.study import Probe


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
    measured, 1 if equal; see :mod:`tuner.planner.transfer`."""

    @property
    def is_dry_run(self) -> bool:
        """Whether their memory is from a dry run."""
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
        """What must be free on a device, as far as the best estimate goes."""
        return int(self.prediction.needed_bytes.value or 0.0)

    @property
    def needed_bytes(self) -> int:
        """What must be free on a device, at the upper end of the interval."""
        return int(self.prediction.needed_bytes.high or 0.0)

    @property
    def may_fit(self) -> bool:
        """Whether they are expected to fit."""
        return self.prediction.fits

    @property
    def fits(self) -> bool:
        """Whether they fit at the upper end of the interval too."""
        return self.may_fit and self.needed_bytes <= self.prediction.limit_bytes

    @property
    def fits_by_no_means(self) -> bool:
        """Whether they do not fit even at the lower end of the interval."""
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
