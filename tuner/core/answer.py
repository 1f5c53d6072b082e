"""The answer of a study: ranked settings with their quantities, and the evidence in words."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tuner.core.configuration import InactiveKnob, Settings
from tuner.core.measurement import Basis
from tuner.core.quantity import Provenance, Quantity, weakest

GIB = 2**30

# Settings that are listed beside the best.
MOST_ALTERNATIVES = 5

# GuardCheck of the guard: that the settings train the same as others was not looked into.
NOT_CHECKED = "not_checked"
# GuardCheck of the guard: each knob's value was seen to train the same, the settings were not.
KNOBS_PASSED = "knobs_passed"
# GuardCheck of the guard on predicted settings: no step of them has run, and nothing like them was
# trained.
UNCHECKED = "unchecked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """Whether the settings were seen to train what they should."""

    verdict: str = NOT_CHECKED
    """What was found."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions of the stack that was measured."""
    date: str | None = None
    """When it was measured, UTC in ISO 8601."""
    why: str = ""
    """Why nothing was checked, or it failed; or what a check that passed leaves out."""

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "verdict": self.verdict,
            "versions": dict(self.versions),
            "date": self.date,
            "why": self.why,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Guard":
        """The reverse of :meth:`as_dict`."""
        return cls(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Settings that fit, with what is known of them."""

    settings: Settings
    """What they are."""
    allocated_gib: Quantity
    """Peak of allocated tensors on the device that needs most."""
    needed_gib: Quantity
    """What must be free on that device, which is compared with the limit: allocated, and what lies
    outside of the allocator."""
    reserved_gib: Quantity
    """Peak held by the caching allocator, part of it free."""
    device_gib: Quantity
    """What the device's own tool shows."""
    limit_gib: float
    """What one device may need."""
    breakdown_gib: Mapping[str, float]
    """Memory by category: parameters, gradients, optimizer, ..."""
    tokens_per_s_per_gpu: Quantity
    """Tokens of the global batch per second of its step and device."""
    step_time_s: Quantity
    """Time of one optimizer step."""
    guard: Guard = field(default_factory=Guard)
    """Whether they train what they should."""
    basis: Basis | None = None
    """What predicted memory was computed from; ``None`` where it was measured."""
    by_phase_gib: Mapping[str, float] = field(default_factory=dict)
    """Of predicted memory, the highest of each phase."""

    @property
    def provenance(self) -> Provenance:
        """The weakest of the memory's and the speed's."""
        return weakest((self.allocated_gib.provenance, self.step_time_s.provenance))

    def as_dict(self) -> dict[str, Any]:
        """The JSON object of ``best`` and of each of ``alternatives``."""
        memory = {
            "allocated_gib": self.allocated_gib.as_dict(),
            "needed_gib": self.needed_gib.as_dict(),
            "reserved_gib": self.reserved_gib.as_dict(),
            "device_gib": self.device_gib.as_dict(),
            "limit_gib": self.limit_gib,
            "breakdown": dict(self.breakdown_gib),
        }
        if self.basis is not None:
            memory |= {"basis": str(self.basis), "by_phase": dict(self.by_phase_gib)}
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
    def from_dict(cls, values: Mapping[str, Any]) -> "Candidate":
        """The reverse of :meth:`as_dict`."""
        memory = values["memory"]
        basis = memory.get("basis")
        return cls(
            settings=Settings.from_dict(values["settings"]),
            allocated_gib=Quantity.from_dict(memory["allocated_gib"]),
            needed_gib=Quantity.from_dict(memory["needed_gib"]),
            reserved_gib=Quantity.from_dict(memory["reserved_gib"]),
            device_gib=Quantity.from_dict(memory["device_gib"]),
            limit_gib=memory["limit_gib"],
            breakdown_gib=memory["breakdown"],
            tokens_per_s_per_gpu=Quantity.from_dict(values["tokens_per_s_per_gpu"]),
            step_time_s=Quantity.from_dict(values["step_time_s"]),
            guard=Guard.from_dict(values["guard"]),
            basis=None if basis is None else Basis(basis),
            by_phase_gib=memory.get("by_phase", {}),
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """The answer of a study, from what is known so far."""

    study_id: str
    """Whose answer."""
    state: str
    """Where the study stands."""
    workload: Mapping[str, Any]
    """What is trained, as plain values."""
    cluster: Mapping[str, Any]
    """Where, as plain values."""
    framework: Mapping[str, Any]
    """With which stack, as plain values."""
    best: Candidate | None
    """The fastest that fits, or one that cannot be told apart from it and is lighter; ``None``
    where nothing fits, or no speed is known."""
    alternatives: tuple[Candidate, ...] = ()
    """The next ones, fastest first. Where no speed is known, and none is best, what fits: of each
    class the largest micro-batch, the simplest class first."""
    pareto: tuple[Candidate, ...] = ()
    """Those that no other beats in both memory and speed, fastest first."""
    dead_knobs: tuple[InactiveKnob, ...] = ()
    """Knobs that do not act, with the reasons."""
    legal: int = 0
    """Number of legal settings."""
    predicted_to_fit: int = 0
    """Number of them whose memory estimate is within the limit."""
    probes: Mapping[str, int] = field(default_factory=dict)
    """Number of probes by outcome."""
    wall_s: float = 0.0
    """Seconds that all probes took."""
    device_s: float = 0.0
    """Device-seconds that all probes took."""
    explanation: tuple[str, ...] = ()
    """Plain sentences, each backed by probes or predictions that it names."""
    launch: Mapping[str, Any] = field(default_factory=lambda: {"argv": [], "files": {}})
    """How to launch the best: ``argv``, and the ``files`` that it reads, by name."""

    @property
    def provenance(self) -> Provenance:
        """The best settings'; unknown when there are none."""
        return self.best.provenance if self.best else Provenance.UNKNOWN

    def as_dict(self) -> dict[str, Any]:
        """The JSON object that ``tuner suggest --json`` prints."""
        inactive = [{"knob": one.knob, "why": one.why} for one in self.dead_knobs]
        return {
            "study_id": self.study_id,
            "state": self.state,
            "workload": dict(self.workload),
            "cluster": dict(self.cluster),
            "framework": dict(self.framework),
            "best": self.best and self.best.as_dict(),
            "alternatives": [candidate.as_dict() for candidate in self.alternatives],
            "pareto": [candidate.as_point() for candidate in self.pareto],
            "dead_knobs": inactive,
            "inactive_knobs": inactive,
            "space": {"legal": self.legal, "predicted_to_fit": self.predicted_to_fit},
            "probes": dict(self.probes),
            "cost": {"wall_s": self.wall_s, "gpu_s": self.device_s},
            "explanation": list(self.explanation),
            "launch": dict(self.launch),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Suggestion":
        """The reverse of :meth:`as_dict`, but for ``pareto``, of which it does not tell all."""
        best = values["best"]
        return cls(
            study_id=values["study_id"],
            state=values["state"],
            workload=values["workload"],
            cluster=values["cluster"],
            framework=values["framework"],
            best=None if best is None else Candidate.from_dict(best),
            alternatives=tuple(map(Candidate.from_dict, values["alternatives"])),
            dead_knobs=tuple(InactiveKnob(**dead) for dead in values["dead_knobs"]),
            legal=values["space"]["legal"],
            predicted_to_fit=values["space"]["predicted_to_fit"],
            probes=values["probes"],
            wall_s=values["cost"]["wall_s"],
            device_s=values["cost"]["gpu_s"],
            explanation=tuple(values["explanation"]),
            launch=values["launch"],
        )
