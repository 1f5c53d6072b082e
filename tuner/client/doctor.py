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
from tuner.core.measurement import CheckState
from tuner.errors import TunerError
from tuner.guard.check import GuardCheck
from tuner.guard.faults import Faults, check_of, path_of
from tuner.guard.replica import STACK
from tuner.machine import memory_bytes, usable_cores
from tuner.text import show

# The knobs that may train wrongly, and their values.
CHECKED: Mapping[str, tuple[Any, ...]] = {
    "sharding": (Sharding.DDP, Sharding.SHARD_GRAD_OP, Sharding.FULL_SHARD, Sharding.HYBRID_SHARD),
    "sync_each_batch": (True, False),
    "defer_all_reduce": (True,),
    "tp_recompute_allgather": (True, False),
    "activation_checkpointing": tuple(
        one for one in Checkpointing if one is not Checkpointing.NONE
    ),
    "cpu_offload": (True,),
    "fused_loss": (True,),
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
    value: str
    verdict: CheckState
    """``failed`` where it is to blame for a failure; else ``passed`` where one with it did."""
    passed: int
    """Replicas with it that trained what one process trains."""
    failed: int
    """Replicas that did not, and for which it is to blame."""
    models: tuple[str, ...]
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
    framework: str
    effect: str
    value: str
    """The value that always acts (inactive), or that trains wrongly (refused)."""
    when: tuple[str, ...]
    """Conditions of the settings, all of which must hold."""
    why: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something that is wrong or missing."""

    what: str
    mend: str
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
    fidelities: tuple[Capability, ...]
    guard: tuple[KnobCheck, ...]
    rules: tuple[VersionRule, ...]
    problems: tuple[Problem, ...]
    gpus: tuple[Mapping[str, Any], ...] = ()
    """As of :class:`GpuLook`; none where there are no GPUs, or they were not looked at."""

    @property
    def is_sound(self) -> bool:
        return not any(problem.serious for problem in self.problems)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "sound": self.is_sound}


def diagnose(
    verdicts: Sequence[GuardCheck],
    *,
    versions: Mapping[str, str] | None = None,
    cluster: Callable[[], Cluster] = local_cluster,
    look: Callable[[], GpuLook] | None = None,
    beside: Sequence[Problem] = (),
) -> Diagnosis:
    """Diagnoses this machine, by kept checks; ``beside`` is what is known to be wrong already."""
    known = installed_versions() if versions is None else dict(versions)
    place, no_place = None, []
    try:
        place = cluster()
    except TunerError as error:
        mend = "name the cluster with --cluster"
        no_place = [Problem(what=str(error), mend=mend, serious=True)]
    missing = [package for package in STACK if package not in known]
    here = [  # on the stack of these versions, and of no script of a user's
        one
        for one in verdicts
        if not one.program and {*STACK} <= one.versions.keys() <= known.keys()
        if all(same_release(version, known[name]) for name, version in one.versions.items())
    ]
    # by the knob and value that are to blame, as studies take them; by an empty name those of none
    reached = [v for v in here if v.result is not CheckState.NOT_CHECKED and v.settings]
    by_check = {check_of(verdict, ""): verdict for verdict in reached}
    failures = Faults(by_check).failures
    blamed = {knob: [by_check[check] for check, _ in ones] for knob, ones in failures.items()}
    checks = tuple(_checks(here, blamed))
    is_gpu = place is not None and place.gpu.device is Device.CUDA
    seen = (look or look_at_gpus)() if is_gpu and "torch" in known else GpuLook()
    problems = [
        Problem(
            what=f"{package} is not installed: nothing can be dry-run, measured or guarded here",
            mend=f"pip install {package}",
            serious=True,
        )
        for package in missing
    ]
    problems += [*beside, *no_place, *_of_gpus(seen)]
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
        rules=()
        if missing
        else tuple(
            VersionRule(
                knob=rule.knob,
                framework=str(name),
                effect=str(rule.effect),
                value=show(rule.value),
                when=tuple(sorted(map(str, rule.when))),
                why=rule.why,
                source=rule.source,
            )
            for name in FRAMEWORKS
            for rule in knob_rules(framework(name, {}, known))
            if rule.knob in CHECKED
        ),
        problems=tuple(sorted(problems, key=lambda problem: not problem.serious)),
        gpus=seen.gpus,
    )


def look_at_gpus() -> GpuLook:
    """Starts a process on each GPU, as probes are started, which says whether torch can use it."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "workers.devices"],
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


def _checks(
    verdicts: Sequence[GuardCheck], blamed: Mapping[tuple[str, Any], Sequence[GuardCheck]]
) -> Iterator[KnobCheck]:
    # Each with the knobs that were live in its replica.
    acting = [
        (v, dict(path_of(Settings.from_dict(v.settings), v.ranks))) for v in verdicts if v.settings
    ]
    for knob, values in CHECKED.items():
        # Without sharding nothing is reduced, and it is not seen when.
        needed = {knob, "sharding"} if knob == "sync_each_batch" else {knob}
        for value in values:
            of_value = [v for v, acts in acting if needed <= acts.keys() and acts[knob] == value]
            passed = [v for v in of_value if v.result is CheckState.PASSED]
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
