"""A dry run as it is kept: what was asked, and what came back."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from tuner.dryrun.plan import FORMAT, DryRunPlan
from tuner.dryrun.profile import Profile
from tuner.dryrun.trace import Trace
from tuner.settings import Settings


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
    versions: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Of the packages that were run."""
    created_at: str = ""
    """When, UTC in ISO 8601."""

    @property
    def profile(self) -> Profile | None:
        """What the traces say of the whole model; ``None`` when there is an error."""
        return None if self.error else _profile(self)

    @classmethod
    def from_answers(
        cls, plan: DryRunPlan, answers: Iterable[Mapping[str, Any]], created_at: str = ""
    ) -> "DryRun":
        """The record of a plan's answers, in any order; other plans' answers are passed over.

        Whatever is wrong with them becomes its ``error``.
        """
        by_id = {answer.get("id"): answer for answer in answers}
        of_plan = [by_id.get(request["id"], {}) for request in plan.requests]
        error = next(filter(None, map(_error, of_plan)), "")
        traces: tuple[Trace, ...] = ()
        if not error:
            try:
                traces = tuple(Trace.from_dict(answer["trace"]) for answer in of_plan)
                Profile.from_traces(traces, plan.layers)
            except ValueError as wrong:
                traces, error = (), f"the dry runs cannot be combined: {wrong}"
        return cls(
            key=plan.key,
            class_settings=plan.class_settings,
            layers=plan.layers,
            depths=plan.depths,
            traces=traces,
            error=error,
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


def _error(answer: Mapping[str, Any]) -> str:
    """An answer's error in one line; empty when it has a trace."""
    if "trace" in answer:
        return ""
    found = answer.get("error") or {"type": "none", "message": "no answer came"}
    where = " in ".join(filter(None, (found.get("operator"), found.get("phase"))))
    text = " ".join(str(found.get("message", "")).split())[:300]
    named = f"{found['type']}: {text}" if text else str(found["type"])
    return f"{named} (at {where})" if where else named
