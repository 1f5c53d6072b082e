"""Diagnoses this machine: what it can do, and what is wrong. Imports nothing heavy."""

import json
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tuner.client.capabilities import Capability, capabilities
from tuner.core.cluster import Cluster, Device, local_cluster
from tuner.core.configuration import Checkpointing, Settings, Sharding
from tuner.core.framework import (
    FrameworkName,
    framework,
    installed_versions,
    knob_rules,
    same_release,
    version_notes,
)
from tuner.errors import TunerError
from tuner.guard.check import CheckState, GuardCheck
from tuner.guard.counts import path_of
from tuner.guard.faults import Faults, check_of
from tuner.guard.replica import STACK, stack_of
from tuner.machine import memory_bytes, usable_cores
from tuner.space.inactive import show

# The knobs that may train wrongly, and their values.
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
# What replicas, which run on CPU processes, cannot show of a knob.
LEFT_OPEN: Mapping[str, str] = {"cpu_offload": "not seen to act on a CPU, only to train the same"}
# Those that are probed here.
FRAMEWORKS = (FrameworkName.TORCH, FrameworkName.ACCELERATE, FrameworkName.TRAINER)
# For processes on all GPUs to import torch from a slow file system, and to look.
LOOK_S = 300.0
# Of /dev/shm, as of ``workers/probe/check.py``.
LEAST_SHM_BYTES = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLook:
    """Findings of processes on the GPUs."""

    gpus: tuple[Mapping[str, Any], ...] = ()
    """By GPU: torch, cuda (that torch is built for), driver, free_bytes, total_bytes, shm_bytes."""
    why_unusable: str = ""
    """The reason why no probe can be run on them; empty if there is none."""
    in_use: bool = False
    """Whether they were not looked at, since probes of a worker run there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobCheck:
    """One value of a knob in the versions that are installed."""

    knob: str
    """Its name."""
    value: str
    """The value."""
    verdict: CheckState
    """``failed`` where it is to blame for a failure; else ``passed`` where one with it did."""
    passed: int
    """Replicas with it that trained what one process trains."""
    failed: int
    """Replicas that did not, and for which it is to blame."""
    models: tuple[str, ...]
    """Their architectures."""
    date: str | None
    """Of the last of them, UTC in ISO 8601."""
    why: str
    """Of the first failure for which it is to blame."""
    left_open: str = ""
    """What no replica shows of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRule:
    """Known effect of the installed versions on a knob."""

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
    gpus: tuple[Mapping[str, Any], ...] = ()
    """As of :class:`GpuLook`; none where there are no GPUs, or they were not looked at."""

    @property
    def is_sound(self) -> bool:
        """Tells whether nothing serious is wrong."""
        return not any(problem.serious for problem in self.problems)

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**asdict(self), "sound": self.is_sound}


def diagnose(
    verdicts: Sequence[GuardCheck],
    *,
    versions: Mapping[str, str] | None = None,
    cluster: Callable[[], Cluster] = local_cluster,
    look: Callable[[], GpuLook] | None = None,
) -> Diagnosis:
    """Look at this machine.

    Args:
        verdicts: all that are kept; those of other versions are left out.
        versions: of the installed packages, by default of this Python.
        cluster: finds the local cluster.
        look: has processes look at the GPUs, where there are GPUs and torch; :func:`look_at_gpus`
            unless given.
    """
    known = installed_versions() if versions is None else dict(versions)
    place, trouble = _place(cluster)
    missing = [package for package in STACK if package not in known]
    here = [v for v in verdicts if _is_of(known, v)]
    blamed = _blamed(here)
    checks = tuple(_checks(here, blamed))
    is_gpu = place is not None and place.gpu.device is Device.CUDA
    seen = (look or look_at_gpus)() if is_gpu and "torch" in known else GpuLook()
    problems = [*_missing(missing), *_of_devices(trouble), *_of_gpus(seen)]
    unblamed = [one for (knob, _), ones in blamed.items() if not knob for one in ones]
    problems += [*_of_guard(checks, unblamed, missing), *_of_versions(known, missing)]
    return Diagnosis(
        versions={"python": platform.python_version(), **known},
        device=place.name if place else "",
        devices=place.world_size if place else 0,
        device_memory_bytes=place.gpu.memory_bytes if place and is_gpu else memory_bytes(),
        cores=usable_cores(),
        fidelities=tuple(capabilities(place, missing, seen.why_unusable)),
        guard=checks,
        rules=() if missing else tuple(_rules(known)),
        problems=tuple(sorted(problems, key=lambda problem: not problem.serious)),
        gpus=seen.gpus,
    )


def look_at_gpus() -> GpuLook:
    """Starts a process on each GPU, as probes are started, which says whether torch can use it."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "workers.look"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LOOK_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return GpuLook(why_unusable=f"the GPUs cannot be looked at: {error}")
    try:
        told = json.loads(done.stdout)
        gpus = tuple(gpu for gpu in told["gpus"] if gpu)
        return GpuLook(gpus=gpus, why_unusable=told["why_unusable"], in_use=told["in_use"])
    except (ValueError, KeyError, TypeError):
        words = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1][:300]
        return GpuLook(why_unusable=f"the GPUs cannot be looked at: {words}")


def _place(cluster: Callable[[], Cluster]) -> tuple[Cluster | None, str]:
    try:
        return cluster(), ""
    except TunerError as error:
        return None, str(error)


def _is_of(versions: Mapping[str, str], verdict: GuardCheck) -> bool:
    """Tells whether a verdict is on the stack of these versions, and of no script of a user's."""
    if verdict.program:
        return False
    stack, theirs = stack_of(versions), stack_of(verdict.versions)
    return stack.keys() == theirs.keys() and all(
        same_release(version, theirs[package]) for package, version in stack.items()
    )


def _blamed(verdicts: Sequence[GuardCheck]) -> Mapping[tuple[str, Any], Sequence[GuardCheck]]:
    """The verdicts that failed by the knob and value that are to blame, as studies take them; by an
    empty name those that blame none."""
    reached = [v for v in verdicts if v.ruling is not CheckState.NOT_CHECKED and v.settings]
    by_check = {check_of(verdict, ""): verdict for verdict in reached}
    failures = Faults(by_check).failures
    return {blamed: [by_check[check] for check, _ in ones] for blamed, ones in failures.items()}


def _checks(
    verdicts: Sequence[GuardCheck], blamed: Mapping[tuple[str, Any], Sequence[GuardCheck]]
) -> Iterator[KnobCheck]:
    for knob, values in CHECKED.items():
        for value in values:
            of_value = [v for v in verdicts if _has(v, knob, value)]
            passed = [v for v in of_value if v.ruling is CheckState.PASSED]
            failed = blamed.get((knob, value), ())
            verdict = CheckState.PASSED if passed else CheckState.NOT_CHECKED
            yield KnobCheck(
                knob=knob,
                value=show(value),
                verdict=CheckState.FAILED if failed else verdict,
                passed=len(passed),
                failed=len(failed),
                models=tuple(sorted({v.model_type for v in (*passed, *failed)})),
                date=max((v.date for v in (*passed, *failed) if v.date), default=None),
                why=f"{failed[0].detail} ({failed[0].structure})" if failed else "",
                left_open=LEFT_OPEN.get(knob, ""),
            )


def _has(verdict: GuardCheck, knob: str, value: object) -> bool:
    """Tells whether a replica had a knob at a value, where the knob is live."""
    if not verdict.settings:
        return False
    acts = dict(path_of(Settings.from_dict(verdict.settings), verdict.ranks))
    is_seen = knob != "sync_each_batch" or "sharding" in acts  # else nothing is reduced
    return is_seen and knob in acts and acts[knob] == value


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


def _of_gpus(seen: GpuLook) -> Iterator[Problem]:
    if seen.why_unusable:
        yield Problem(
            what=seen.why_unusable,
            mend="until then no probe is run on these GPUs; docs/troubleshooting.md says more",
            serious=True,
        )
    if seen.in_use:
        yield Problem(
            what="probes run on the GPUs, which were not looked at",
            mend="ask again when they are done",
        )
    shm_bytes = min((gpu["shm_bytes"] for gpu in seen.gpus if gpu.get("shm_bytes")), default=None)
    if len(seen.gpus) > 1 and shm_bytes is not None and shm_bytes < LEAST_SHM_BYTES:
        yield Problem(
            what=f"{shm_bytes / 2**20:.0f} MiB is the size of /dev/shm, and NCCL needs about 1 GiB"
            " with several GPUs",
            mend="docker run --shm-size=1g, or --ipc=host",
        )


def _of_guard(
    checks: Sequence[KnobCheck], unblamed: Sequence[GuardCheck], missing: Sequence[str]
) -> Iterator[Problem]:
    for check in checks:
        if check.verdict is CheckState.FAILED:
            yield Problem(
                what=f"{check.knob}={check.value} trains wrongly here: {check.why}",
                mend="it is not suggested in these versions; other versions may be right",
                serious=True,
            )
    for one in unblamed:
        yield Problem(
            what=f"{one.structure} trains wrongly here, and no one knob is known to be why:"
            f" {one.detail}",
            mend="such settings are not suggested in these versions; other versions may be right",
            serious=True,
        )
    if not (missing or unblamed) and all(
        check.verdict is CheckState.NOT_CHECKED for check in checks
    ):
        yield Problem(
            what="no knob was checked with the installed versions",
            mend="tuner doctor --run checks them in a minute or two",
        )


def _of_versions(versions: Mapping[str, str], missing: Sequence[str]) -> Iterator[Problem]:
    """Diagnoses versions by the table; newer releases than it knows are no fault, but unchecked."""
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
