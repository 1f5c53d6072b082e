"""A configuration with what is known of it: memory, time, where they are from, and the evidence."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

from tuner.core.configuration import Settings
from tuner.core.measurement import Basis, Fidelity, Outcome
from tuner.core.quantity import UNKNOWN, Provenance, Quantity, weakest
from tuner.core.study import Probe
from tuner.serialization import Plain

GIB = 2**30

# Verdict of the guard: that the configuration trains the same as others was not looked into.
NOT_CHECKED = "not_checked"
# Verdict of the guard: each knob's value was seen to train the same, the configuration was not.
KNOBS_PASSED = "knobs_passed"
# Verdict of the guard on a predicted configuration: no step of it has run, and nothing like it was
# trained.
UNCHECKED = "unchecked"

# What stands behind what probes of a fidelity show.
BY_FIDELITY = {
    Fidelity.MEASURED: Provenance.MEASURED,
    Fidelity.EMULATED: Provenance.EMULATED,
    Fidelity.REHEARSED: Provenance.REHEARSED,
    Fidelity.PREDICTED: Provenance.PREDICTED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard(Plain):
    """Says if a configuration was seen to train what it should."""

    verdict: str = NOT_CHECKED
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions of the stack that was measured."""
    date: str | None = None  # when it was measured, UTC in ISO 8601
    why: str = ""  # why nothing was checked, or it failed; or what a check that passed leaves out


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """A configuration with what the probes of one fidelity, or a prediction, say of it.

    Memory is of the device that needs most.
    """

    settings: Settings
    fidelity: Fidelity = Fidelity.PREDICTED  # how it was run, or that it is predicted
    outcome: Outcome | None = None
    """How its last probe ended that says something; ``None`` of a prediction."""
    fits: bool | None = None
    """Within the limit, as far as the best estimate goes, and nothing speaks against it; ``None``
    where that is not known."""
    why: str = ""  # why it does not fit, what happened, or why a quantity is unknown
    needed_bytes: Quantity = UNKNOWN
    """What must be free, which is compared with the limit: allocated, and what lies outside the
    allocator. Where memory ran out, a lower bound."""
    allocated_bytes: Quantity = UNKNOWN  # peak of allocated tensors
    reserved_bytes: Quantity = UNKNOWN  # peak held by the caching allocator, part of it free
    device_bytes: Quantity = UNKNOWN  # what the device's own tool shows
    outside_bytes: float = 0.0
    """What lies outside the allocator: the device's context, and communicators."""
    context_bytes: float = 0.0  # the context's part of that, as it is predicted
    limit_bytes: float = inf  # what one device may need
    over_bytes: float | None = None
    """By how much it exceeds that, at least; ``None`` where it does not, or nothing is known."""
    breakdown: Mapping[str, float] = field(default_factory=dict)
    """Bytes by category: parameters, gradients, optimizer, ..."""
    by_phase: Mapping[str, float] = field(default_factory=dict)
    """Of predicted memory, the highest bytes of each phase."""
    basis: Basis | None = None
    """What memory was computed from; ``None`` where it was measured or emulated, or is unknown."""
    step_time_s: Quantity = UNKNOWN  # seconds of an optimizer step
    spread_s: Quantity = UNKNOWN
    """The same with the interval of the timed steps alone, which tells configurations apart."""
    tokens_per_s_per_gpu: Quantity = UNKNOWN
    """Tokens of the global batch per second of its step and device."""
    probes: tuple[Probe, ...] = ()  # where that is known from; of a prediction, its dry run
    extrapolated: bool = False  # the time comes from fewer micro-batches than the configuration has
    factor: float = 1.0
    """What the predicted time was multiplied by, for what probes took that ran steps."""
    near: float = 0.0
    """Of a time that was corrected by other studies: how alike the nearest configuration is that
    they measured, 1 if equal; see :mod:`tuner.planner.similar`."""
    notes: tuple[str, ...] = ()  # what a reader should know of predicted figures
    guard: Guard = field(default_factory=Guard)

    @property
    def seconds(self) -> float:
        """The step time's value; infinite where it is unknown."""
        value = self.step_time_s.value
        return inf if value is None else value

    @property
    def expected_bytes(self) -> int:
        """Memory that must be free, as far as the best estimate goes."""
        return int(self.needed_bytes.value or 0.0)

    @property
    def most_bytes(self) -> int:
        """Memory that must be free, at the upper end of the interval."""
        return int(self.needed_bytes.high or 0.0)

    @property
    def fits_surely(self) -> bool:
        """True where it fits at the upper end of the interval too."""
        return bool(self.fits) and self.most_bytes <= self.limit_bytes

    @property
    def too_large(self) -> bool:
        """True where it needs more than the limit, or ran out of memory."""
        return self.over_bytes is not None

    @property
    def at_least(self) -> bool:
        """True where memory ran out, so that what it needs is a lower bound."""
        return self.outcome is Outcome.OOM and self.needed_bytes.value is not None

    @property
    def ended_early(self) -> bool:
        """True where it was too slow to be timed further."""
        return self.outcome is Outcome.STOPPED_EARLY

    @property
    def is_rehearsed(self) -> bool:
        """True where its memory is from a rehearsal."""
        return self.basis is Basis.REHEARSED

    @property
    def is_dry_run(self) -> bool:
        """True where its memory is from a dry run."""
        return self.basis is Basis.DRY_RUN

    @property
    def probe_ids(self) -> tuple[int, ...]:
        return tuple(probe.id for probe in self.probes)

    @property
    def provenance(self) -> Provenance:
        """The weakest of the memory's and the speed's."""
        return weakest((self.allocated_bytes.provenance, self.step_time_s.provenance))

    @property
    def known_from(self) -> Provenance:
        """The weakest of what is known of memory and speed; of neither, how it was run."""
        known = (self.needed_bytes, self.step_time_s)
        found = [quantity.provenance for quantity in known if quantity.value is not None]
        return weakest(found) if found else BY_FIDELITY[self.fidelity]

    @property
    def needed_gib(self) -> Quantity:
        return self.needed_bytes.scaled(1 / GIB)

    @property
    def allocated_gib(self) -> Quantity:
        return self.allocated_bytes.scaled(1 / GIB)

    @property
    def reserved_gib(self) -> Quantity:
        return self.reserved_bytes.scaled(1 / GIB)

    @property
    def device_gib(self) -> Quantity:
        return self.device_bytes.scaled(1 / GIB)

    @property
    def limit_gib(self) -> float:
        return self.limit_bytes / GIB

    @property
    def breakdown_gib(self) -> dict[str, float]:
        return {name: size / GIB for name, size in self.breakdown.items()}

    @property
    def by_phase_gib(self) -> dict[str, float]:
        return {name: size / GIB for name, size in self.by_phase.items()}

    def as_dict(self) -> dict[str, Any]:
        """The JSON object of ``best`` and of each of ``alternatives``."""
        sizes = ("allocated_gib", "needed_gib", "reserved_gib", "device_gib")
        memory: dict[str, Any] = {name: getattr(self, name).as_dict() for name in sizes}
        memory |= {"limit_gib": self.limit_gib, "breakdown": self.breakdown_gib}
        if self.basis is not None:
            memory |= {"basis": str(self.basis), "by_phase": self.by_phase_gib}
        return {
            "settings": self.settings.as_dict(),
            "provenance": str(self.provenance),
            "fits": True,
            "memory": memory,
            "tokens_per_s_per_gpu": self.tokens_per_s_per_gpu.as_dict(),
            "step_time_s": self.step_time_s.as_dict(),
            "guard": self.guard.as_dict(),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Evaluation":
        memory = values["memory"]
        basis = memory.get("basis")

        def size(name: str) -> Quantity:
            return Quantity.from_dict(memory[name]).scaled(GIB)

        return cls(
            settings=Settings.from_dict(values["settings"]),
            fits=values["fits"],
            allocated_bytes=size("allocated_gib"),
            needed_bytes=size("needed_gib"),
            reserved_bytes=size("reserved_gib"),
            device_bytes=size("device_gib"),
            limit_bytes=memory["limit_gib"] * GIB,
            breakdown={name: gib * GIB for name, gib in memory["breakdown"].items()},
            tokens_per_s_per_gpu=Quantity.from_dict(values["tokens_per_s_per_gpu"]),
            step_time_s=Quantity.from_dict(values["step_time_s"]),
            guard=Guard.from_dict(values["guard"]),
            basis=None if basis is None else Basis(basis),
            by_phase={name: gib * GIB for name, gib in memory.get("by_phase", {}).items()},
        )

    def as_point(self) -> dict[str, Any]:
        """The JSON object of each of ``pareto``: settings, memory and speed."""
        memory: dict[str, Any] = {"allocated_gib": self.allocated_gib.as_dict()}
        if self.basis is not None:
            memory["basis"] = str(self.basis)
        return {
            "settings": self.settings.as_dict(),
            "memory": memory,
            "tokens_per_s_per_gpu": self.tokens_per_s_per_gpu.as_dict(),
        }
