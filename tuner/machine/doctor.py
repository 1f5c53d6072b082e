"""What this machine can do for the product, and what is wrong with it. Imports nothing heavy."""

import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tuner.cluster import Cluster, Device, local_cluster
from tuner.errors import TunerError
from tuner.framework import (
    FrameworkName,
    framework,
    installed_versions,
    knob_rules,
    same_release,
    version_notes,
)
from tuner.guard.ruling import Ruling
from tuner.guard.twin import STACK, stack_of
from tuner.guard.verdict import Verdict
from tuner.machine import memory_bytes, usable_cores
from tuner.machine.capabilities import Capability, capabilities
from tuner.settings import Checkpointing, Sharding
from tuner.space.dead import show

CHECKED: Mapping[str, tuple[Any, ...]] = {
    "sharding": (
        Sharding.DDP,
        Sharding.SHARD_GRAD_OP,
        Sharding.FULL_SHARD,
        Sharding.HYBRID_SHARD,
    ),
    "sync_each_batch": (True, False),
    "tp_recompute_allgather": (True, False),
    "activation_checkpointing": (Checkpointing.FULL,),
    "cpu_offload": (True,),
}
"""The knobs that may train wrongly, and their values."""
LEFT_OPEN: Mapping[str, str] = {"cpu_offload": "not seen to act on a CPU, only to train the same"}
"""What twins, which run on CPU processes, cannot show of a knob."""
FRAMEWORKS = (FrameworkName.TORCH, FrameworkName.ACCELERATE, FrameworkName.TRAINER)
"""Those that are probed here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobCheck:
    """One value of a knob in the versions that are installed."""

    knob: str
    """Its name."""
    value: str
    """The value."""
    verdict: Ruling
    """The worst of the guard's verdicts on settings with it."""
    passed: int
    """Twins with it that trained what one process trains."""
    failed: int
    """Twins with it that did not."""
    models: tuple[str, ...]
    """Their architectures."""
    date: str | None
    """Of the last of them, UTC in ISO 8601."""
    why: str
    """Of the first that failed."""
    left_open: str = ""
    """What no twin shows of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRule:
    """What the installed versions are known to do with a knob."""

    knob: str
    """Its name."""
    framework: str
    """Under which framework."""
    effect: str
    """``dead`` or ``refused``."""
    value: str
    """The value that always acts (dead), or that trains wrongly (refused)."""
    when: tuple[str, ...]
    """Conditions of the settings, all of which must hold."""
    why: str
    """The reason."""
    source: str
    """Where that is known from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something that is wrong or missing."""

    what: str
    """In one sentence."""
    mend: str
    """What to do about it."""
    serious: bool = False
    """Whether something cannot be done, or is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """All of it."""

    versions: Mapping[str, str]
    """Of Python and of the packages that decide what is trained."""
    device: str
    """The local cluster's name; empty when it cannot be told."""
    devices: int
    """GPUs, or CPU processes that can be ranks."""
    device_memory_bytes: int
    """Of each GPU; of the machine, when it has none."""
    cores: int
    """That this process may use."""
    fidelities: tuple[Capability, ...]
    """What can be done."""
    guard: tuple[KnobCheck, ...]
    """Knob by knob."""
    rules: tuple[VersionRule, ...]
    """Of the installed versions."""
    problems: tuple[Problem, ...]
    """The serious ones first."""

    @property
    def is_sound(self) -> bool:
        """Whether nothing serious is wrong."""
        return not any(problem.serious for problem in self.problems)

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**asdict(self), "sound": self.is_sound}


def diagnose(
    verdicts: Sequence[Verdict],
    *,
    versions: Mapping[str, str] | None = None,
    cluster: Callable[[], Cluster] = local_cluster,
) -> Diagnosis:
    """Look at this machine.

    Args:
        verdicts: all that are kept; those of other versions are left out.
        versions: of the installed packages, by default of this Python.
        cluster: finds the local cluster.
    """
    known = installed_versions() if versions is None else dict(versions)
    place, trouble = _place(cluster)
    missing = [package for package in STACK if package not in known]
    here = [v for v in verdicts if _is_of(known, v)]
    checks = tuple(_checks(here))
    problems = [*_missing(missing), *_of_devices(trouble), *_of_guard(checks, missing)]
    problems += _of_versions(known, missing)
    is_gpu = place is not None and place.gpu.device is Device.CUDA
    return Diagnosis(
        versions={"python": platform.python_version(), **known},
        device=place.name if place else "",
        devices=place.world_size if place else 0,
        device_memory_bytes=place.gpu.memory_bytes if place and is_gpu else memory_bytes(),
        cores=usable_cores(),
        fidelities=tuple(capabilities(place, missing)),
        guard=checks,
        rules=() if missing else tuple(_rules(known)),
        problems=tuple(sorted(problems, key=lambda problem: not problem.serious)),
    )


def _place(cluster: Callable[[], Cluster]) -> tuple[Cluster | None, str]:
    try:
        return cluster(), ""
    except TunerError as error:
        return None, str(error)


def _is_of(versions: Mapping[str, str], verdict: Verdict) -> bool:
    """Whether a verdict is on the stack of these versions."""
    stack, theirs = stack_of(versions), stack_of(verdict.versions)
    return stack.keys() == theirs.keys() and all(
        same_release(version, theirs[package]) for package, version in stack.items()
    )


def _checks(verdicts: Sequence[Verdict]) -> Iterator[KnobCheck]:
    for knob, values in CHECKED.items():
        for value in values:
            of_value = [v for v in verdicts if _has(v, knob, value)]
            passed = [v for v in of_value if v.ruling is Ruling.PASSED]
            failed = [v for v in of_value if v.ruling is Ruling.FAILED]
            verdict = Ruling.PASSED if passed else Ruling.NOT_CHECKED
            yield KnobCheck(
                knob=knob,
                value=show(value),
                verdict=Ruling.FAILED if failed else verdict,
                passed=len(passed),
                failed=len(failed),
                models=tuple(sorted({v.model_type for v in (*passed, *failed)})),
                date=max((v.date for v in (*passed, *failed) if v.date), default=None),
                why=f"{failed[0].detail} ({failed[0].structure})" if failed else "",
                left_open=LEFT_OPEN.get(knob, ""),
            )


def _has(verdict: Verdict, knob: str, value: object) -> bool:
    """Whether a twin had a knob at a value, where the knob is live."""
    settings = verdict.settings
    if settings.get(knob) != value:
        return False
    if knob == "tp_recompute_allgather":
        return bool(settings["tp_size"] > 1)
    if knob == "sync_each_batch":
        return settings["gradient_accumulation_steps"] > 1 and _is_parallel(verdict)
    return knob != "sharding" or _is_parallel(verdict)


def _is_parallel(verdict: Verdict) -> bool:
    """A twin with tensor parallelism under ddp has no data-parallel ranks."""
    settings = verdict.settings
    return bool(settings["tp_size"] == 1 or settings["sharding"] != Sharding.DDP)


def _rules(versions: Mapping[str, str]) -> Iterator[VersionRule]:
    for name in FRAMEWORKS:
        for rule in knob_rules(framework(name, {}, versions)):
            if rule.knob in CHECKED:
                yield VersionRule(
                    knob=rule.knob,
                    framework=str(name),
                    effect=str(rule.effect),
                    value=show(rule.value),
                    when=tuple(sorted(map(str, rule.when))),
                    why=rule.why,
                    source=rule.source,
                )


def _missing(packages: Sequence[str]) -> Iterator[Problem]:
    for package in packages:
        yield Problem(
            what=f"{package} is not installed: nothing can be dry-run, measured or guarded here",
            mend=f"pip install {package}",
            serious=True,
        )


def _of_devices(trouble: str) -> Iterator[Problem]:
    if trouble:
        yield Problem(what=trouble, mend="name the cluster with --cluster", serious=True)


def _of_guard(checks: Sequence[KnobCheck], missing: Sequence[str]) -> Iterator[Problem]:
    for check in checks:
        if check.verdict is Ruling.FAILED:
            yield Problem(
                what=f"{check.knob}={check.value} trains wrongly here: {check.why}",
                mend="it is not suggested in these versions; other versions may be right",
                serious=True,
            )
    if not missing and all(check.verdict is Ruling.NOT_CHECKED for check in checks):
        yield Problem(
            what="no knob was checked with the installed versions",
            mend="tuner doctor --run checks them in a minute or two",
        )


def _of_versions(versions: Mapping[str, str], missing: Sequence[str]) -> Iterator[Problem]:
    """What the version table says; newer releases than it knows are no fault, but unchecked."""
    if missing:
        return
    try:
        notes = dict.fromkeys(
            note for name in FRAMEWORKS for note in version_notes(framework(name, {}, versions))
        )
    except TunerError as error:
        yield Problem(what=str(error), mend="install a newer version", serious=True)
        return
    for note in notes:
        yield Problem(what=note, mend="tuner doctor --run shows whether the knobs act in it")
