"""The answer of a study: ranked configurations, the evidence as facts, and these in words."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tuner.core.configuration import InactiveKnob
from tuner.core.evaluation import Evaluation
from tuner.core.quantity import Provenance

# Configurations that are listed beside the best.
MOST_ALTERNATIVES = 5

# Of an answer that says nothing of it.
NO_LAUNCH: Mapping[str, Any] = {"argv": [], "files": {}, "script_sets": [], "beside": {}}

# The public name of an evaluation in an answer.
Candidate = Evaluation


class Reason(StrEnum):
    """The reason for which the answer goes before the fastest, where they are two."""

    CHECKED = "checked"  # its knobs were seen to train what they should
    LIGHTER = "lighter"  # it needs less memory
    SIMPLER = "simpler"  # fewer knobs are off their default, and it needs no more memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Awkward:
    """A global batch that divides badly, with others near it that do not."""

    global_batch_size: int
    gpus: int
    cost: float  # part of the speed of the best of the others that it loses
    instead: tuple[int, ...]  # batches near it that do not, smallest first


@dataclass(frozen=True, slots=True, kw_only=True)
class Grounds:
    """The grounds of expected numbers."""

    by_rules_of_thumb: bool  # the model is not named, and nothing is predicted of it
    at_assumed_rates: bool  # the cost model had to assume rates of the cluster
    by_other_fidelities: bool  # probes of other fidelities correct them too
    by_other_studies: bool  # so do other studies' probes


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """The answer of a study, from what is known so far."""

    study_id: str  # whose answer
    state: str  # where the study stands
    workload: Mapping[str, Any]  # what is trained, as plain values
    cluster: Mapping[str, Any]  # where, as plain values
    framework: Mapping[str, Any]  # with which stack, as plain values
    best: Evaluation | None
    """The fastest that fits, or one that cannot be told apart from it and is lighter; ``None``
    where nothing fits, or no speed is known."""
    alternatives: tuple[Evaluation, ...] = ()
    """The next ones, fastest first. Where no speed is known, and none is best, what fits: of each
    class the largest micro-batch, the simplest class first."""
    pareto: tuple[Evaluation, ...] = ()
    """Those that no other beats in both memory and speed, fastest first."""
    dead_knobs: tuple[InactiveKnob, ...] = ()  # knobs that do not act, with the reasons
    legal: int = 0  # number of legal settings
    predicted_to_fit: int = 0  # number of them whose memory estimate is within the limit
    probes: Mapping[str, int] = field(default_factory=dict)  # number of probes by outcome
    wall_s: float = 0.0  # seconds that all probes took
    device_s: float = 0.0  # device-seconds that all probes took
    explanation: tuple[str, ...] = ()
    """Plain sentences, each backed by probes or predictions that it names."""
    facts: tuple[Mapping[str, Any], ...] = ()
    """What the sentences say, one each, as plain values: ``kind``, and numbers with units."""
    loss_kernel: str = ""  # what computes a fused loss; empty where a script of the user's own does
    launch: Mapping[str, Any] = field(default_factory=lambda: {**NO_LAUNCH})
    """How to launch the best: ``argv``, the ``files`` that it reads, by name, ``script_sets``, the
    knobs that the training script must set itself, as ``name=value``, and ``beside``, what else a
    file cannot say, by its name; below a text's first line is code."""

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
            "best": self.best and self._shown(self.best),
            "alternatives": [self._shown(candidate) for candidate in self.alternatives],
            "pareto": [candidate.as_point() for candidate in self.pareto],
            "dead_knobs": inactive,
            "inactive_knobs": inactive,
            "space": {"legal": self.legal, "predicted_to_fit": self.predicted_to_fit},
            "probes": dict(self.probes),
            "cost": {"wall_s": self.wall_s, "gpu_s": self.device_s},
            "explanation": list(self.explanation),
            "facts": [dict(fact) for fact in self.facts],
            "launch": dict(self.launch),
        }

    def _shown(self, one: Evaluation) -> dict[str, Any]:
        """An evaluation, with what computes its loss where that is fused, and known."""
        if not one.settings.fused_loss or not self.loss_kernel:
            return one.as_dict()
        return {**one.as_dict(), "loss_kernel": self.loss_kernel}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Suggestion":
        """The reverse of :meth:`as_dict`, but for ``pareto``, of which it does not tell all."""
        best = values["best"]
        shown = [one for one in (best, *values["alternatives"]) if one is not None]
        return cls(
            study_id=values["study_id"],
            state=values["state"],
            workload=values["workload"],
            cluster=values["cluster"],
            framework=values["framework"],
            best=None if best is None else Evaluation.from_dict(best),
            alternatives=tuple(map(Evaluation.from_dict, values["alternatives"])),
            dead_knobs=tuple(InactiveKnob(**dead) for dead in values["dead_knobs"]),
            legal=values["space"]["legal"],
            predicted_to_fit=values["space"]["predicted_to_fit"],
            probes=values["probes"],
            wall_s=values["cost"]["wall_s"],
            device_s=values["cost"]["gpu_s"],
            explanation=tuple(values["explanation"]),
            facts=tuple(values.get("facts", ())),
            loss_kernel=next((one["loss_kernel"] for one in shown if "loss_kernel" in one), ""),
            launch={**NO_LAUNCH, **values["launch"]},
        )
