"""A dry run as it is kept: what was asked, and what came back."""

import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from tuner.dryrun.plan import FORMAT, DryRunPlan
from tuner.dryrun.process import LIMIT_S
from tuner.dryrun.profile import Profile
from tuner.dryrun.trace import Trace
from tuner.settings import Settings

TIME_LIMIT = "TimeLimit"
"""Type of the error of dry runs that took too long."""
ENDED = (TIME_LIMIT, "Crashed")
"""Types of errors of dry runs that were ended from outside, whatever they were at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """The dry runs of one class of settings, or why there are none."""

    key: str
    """What decides the result, hashed: :attr:`tuner.dryrun.DryRunPlan.key`."""
    class_settings: Settings
    """The class."""
    layers: int
    """Decoder layers of the whole model."""
    depths: tuple[int, ...]
    """Decoder layers of the models that were run."""
    traces: tuple[Trace, ...] = field(default=(), hash=False)
    """What they showed, one for each depth; empty when one failed."""
    error: str = ""
    """Why there is no profile, fit to be shown; empty when there is one."""
    is_refusal: bool = False
    """Whether the error is the stack's word on these settings: it names a rule, or an operator
    that raised it, or the dry runs take too much CPU time. All else is an accident."""
    limit_s: float = 0.0
    """Seconds of CPU time after which the dry runs were ended; 0 where they were not."""
    machine: str = ""
    """Name of the machine that took so long; empty where none did."""
    versions: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Of the packages that were run."""
    created_at: str = ""
    """When, UTC in ISO 8601."""

    @property
    def profile(self) -> Profile | None:
        """What the traces say of the whole model; ``None`` when there is an error."""
        return None if self.error else _profile(self)

    @property
    def is_late(self) -> bool:
        """Whether it took too long, for its limit or on its machine."""
        return self.error.startswith(TIME_LIMIT)

    @property
    def is_kept(self) -> bool:
        """Whether it is worth keeping for other askings: accidents are not."""
        return not self.error or self.is_refusal

    def holds_here(self, limit_s: float = LIMIT_S) -> bool:
        """Whether this machine need not make it again.

        What took too long does on the machine that it took too long on, for askings that give
        it no more time; on others, which may be faster, it is made again.

        Args:
            limit_s: seconds of CPU time that this asking gives the dry runs of a class.
        """
        if self.limit_s and (limit_s > self.limit_s or self.machine != platform.node()):
            return False
        return self.is_kept

    @classmethod
    def from_answers(
        cls, plan: DryRunPlan, answers: Iterable[Mapping[str, Any]], created_at: str = ""
    ) -> "DryRun":
        """The record of a plan's answers, in any order; other plans' answers are passed over.

        Whatever is wrong with them becomes its ``error``.
        """
        by_id = {answer.get("id"): answer for answer in answers}
        of_plan = [by_id.get(request["id"], {}) for request in plan.requests]
        failed = [_error_of(answer) for answer in of_plan if "trace" not in answer]
        failed.sort(key=_is_refusal, reverse=True)
        error, is_refusal = (_text(failed[0]), _is_refusal(failed[0])) if failed else ("", False)
        limit_s = float(failed[0].get("limit_s", 0.0)) if is_refusal else 0.0
        traces: tuple[Trace, ...] = ()
        if not error:
            try:
                traces = tuple(Trace.from_dict(answer["trace"]) for answer in of_plan)
                Profile.from_traces(traces, plan.layers)
            except ValueError as wrong:
                traces, error = (), f"the dry runs cannot be combined: {wrong}"
                is_refusal = True
        return cls(
            key=plan.key,
            class_settings=plan.class_settings,
            layers=plan.layers,
            depths=plan.depths,
            traces=traces,
            error=error,
            is_refusal=is_refusal,
            limit_s=limit_s,
            machine=platform.node() if limit_s else "",
            versions=traces[-1].versions if traces else {},
            created_at=created_at,
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "format": FORMAT,
            "key": self.key,
            "class_settings": self.class_settings.as_dict(),
            "layers": self.layers,
            "depths": list(self.depths),
            "traces": [trace.as_dict() for trace in self.traces],
            "error": self.error,
            "is_refusal": self.is_refusal,
            "limit_s": self.limit_s,
            "machine": self.machine,
            "versions": dict(self.versions),
            "created_at": self.created_at,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "DryRun":
        """The reverse of :meth:`as_dict`.

        Raises:
            ValueError: another format.
        """
        known = dict(values)
        if (form := known.pop("format", None)) != FORMAT:
            raise ValueError(f"format: got {form!r}; dry runs of format {FORMAT} are read")
        known["class_settings"] = Settings.from_dict(known["class_settings"])
        known["depths"] = tuple(known["depths"])
        known["traces"] = tuple(Trace.from_dict(trace) for trace in known["traces"])
        return cls(**known)


@lru_cache(maxsize=256)
def _profile(dry_run: DryRun) -> Profile:
    return Profile.from_traces(dry_run.traces, dry_run.layers)


def _error_of(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    """The error of an answer that has no trace."""
    return answer.get("error") or {"type": "none", "message": "no answer came"}


def _is_refusal(error: Mapping[str, Any]) -> bool:
    if error["type"] in ENDED:
        return bool(error.get("limit_s"))
    return bool(error.get("rule") or error.get("operator"))


def _text(error: Mapping[str, Any]) -> str:
    """An error in one line."""
    where = " in ".join(filter(None, (error.get("operator"), error.get("phase"))))
    text = " ".join(str(error.get("message", "")).split())[:300]
    named = f"{error['type']}: {text}" if text else str(error["type"])
    return f"{named} (at {where})" if where else named
