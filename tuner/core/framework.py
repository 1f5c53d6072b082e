"""The stack that the user launches with its versions, and what they do with the knobs.

The facts are data with sources in ``catalog/versions.toml``; the functions here only look them up.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache, lru_cache
from importlib import metadata
from typing import Any, Literal

from packaging.version import InvalidVersion, Version

from tuner.catalog.versions import Condition, Effect, KnobRule, meets, meets_all, version_table
from tuner.core.cluster import Device
from tuner.core.packing import PackingVariant
from tuner.core.workload import (
    LossKernel,
    Optimizer,
    Precision,
    ReduceDtype,
    TensorParallel,
    Workload,
)
from tuner.errors import UnknownNameError, UsageError
from tuner.serialization import Plain

# The libraries that adapters and 8-bit optimizers are from, and models in four bits.
ADAPTER_PACKAGE, EIGHT_BIT_PACKAGE, FOUR_BIT_PACKAGE = "peft", "torchao", "bitsandbytes"
# Optimizers that are from there too.
OF_BITSANDBYTES = frozenset({Optimizer.ADAMW_BNB_8BIT, Optimizer.PAGED_ADAMW_8BIT, Optimizer.LION})
# Releases of torch that have Muon (torch.optim.Muon in its release notes).
MUON_BY_TORCH = ">=2.9"
# Why optimizers do not step parameters that are sharded or split, run on two CPU ranks with torch
# 2.13, bitsandbytes 0.50.2 and transformers 5.23 (workers/probe/optimizers.py has their errors).
NO_DTENSORS: Mapping[Optimizer, str] = {
    **dict.fromkeys(
        OF_BITSANDBYTES,
        "bitsandbytes' kernels take no DTensors, which FSDP2 and tensor parallelism make; torchao's"
        " AdamW (--optimizer adamw_8bit) does",
    ),
    Optimizer.ADAFACTOR: "transformers' Adafactor keeps means of rows and columns that are no"
    " DTensors, and ends with an error",
    Optimizer.MUON: "torch's Muon steps DTensors, but what they send for its products depends on"
    " ranks and shapes, and is not predicted",
}
# FlashAttention's, for rows of several documents.
FLASH_PACKAGE = "flash-attn"
# Those of a framework's versions that only workloads with an adapter have, and with packing.
OF_ADAPTERS = frozenset({ADAPTER_PACKAGE, FOUR_BIT_PACKAGE})
OF_WORKLOADS = OF_ADAPTERS | {FLASH_PACKAGE}
# No release has a number above it in its version; some are named by their year.
LARGEST_NUMBER = 9999


class FrameworkName(StrEnum):
    """Stacks that launch and run the training."""

    TORCH = "torch"  # a script of the user's own, with FSDP2 and tensor parallelism
    ACCELERATE = "accelerate"  # a script with accelerate's Accelerator
    TRAINER = "trainer"  # transformers' Trainer
    NANOTRON = "nanotron"
    DEEPSPEED = "deepspeed"  # a script with DeepSpeed's engine: ZeRO 0 to 3


NOT_PROBED = frozenset({FrameworkName.NANOTRON, FrameworkName.DEEPSPEED})
"""Those whose steps the probe program does not run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework(Plain):
    """A framework in certain versions. Raises UsageError: a version that is not one, is older than
    the table describes, or is missing; a package that the framework does not depend on."""

    name: FrameworkName  # which framework
    versions: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Release by package, for the packages that decide what the knobs do and what probes show.

    Releases have three parts and no local suffix: ``2.13.0+cpu`` becomes ``2.13.0``.
    """

    def __post_init__(self) -> None:
        table = version_table().frameworks[self.name]
        for package in self.versions:
            if package not in table.oldest:
                packages = ", ".join(sorted(table.oldest))
                allowed = f"framework {self.name} depends on the versions of {packages}"
                raise UsageError("framework_version", package, allowed)
        for package in table.required:
            if package not in self.versions:
                raise UsageError(
                    "framework_version",
                    None,
                    f"{package} is not installed here: state its version, such as"
                    f" {package}={version_table().packages[package].newest}",
                )
        checked = {p: _release(p, self.versions[p]) for p in sorted(self.versions)}
        for package, release in checked.items():
            oldest = table.oldest[package]
            if Version(release) < Version(oldest):
                allowed = f"older than {oldest}, the oldest that the version table describes"
                raise UsageError("framework_version", f"{package}={release}", allowed)
        object.__setattr__(self, "versions", checked)

    @property
    def fsdp_version(self) -> Literal[1, 2]:
        """The FSDP that shards parameters in these versions (of no meaning for nanotron)."""
        required = version_table().frameworks[self.name].fsdp2
        return 2 if any(meets_all(self.versions, one) for one in required) else 1

    def too_old(self, package: str, needed: str) -> str:
        """The release of a package where it is known and does not meet ``needed``; else empty."""
        release = self.versions.get(package)
        return "" if release is None or meets(release, needed) else release

    @property
    def puts_off(self) -> bool:
        """True of frameworks that put reductions off until the last micro-batch by themselves
        (``no_sync``), as accelerate and the Trainer on it do."""
        return self.name in (FrameworkName.ACCELERATE, FrameworkName.TRAINER)

    def family(self, *, replicated: bool) -> Condition:
        """The rules' name for a sharding: ``ddp`` if gradients are replicated, else the FSDP, or
        DeepSpeed's ZeRO."""
        if replicated:
            return Condition.DDP
        if self.name is FrameworkName.DEEPSPEED:
            return Condition.DEEPSPEED
        return Condition.FSDP2 if self.fsdp_version == 2 else Condition.FSDP1

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Framework":
        """The reverse of :meth:`as_dict`. Nothing is taken from what is installed."""
        return cls(name=framework_name(values["name"]), versions=values["versions"])


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobEffect:
    """Effect of a framework on a knob under given conditions."""

    effect: Effect  # ``live``, ``inactive`` or ``refused``
    values: tuple[bool | int | str, ...] = ()
    """The only value that acts (inactive), those that train wrongly (refused); none if live."""
    why: str = ""  # the reason, fit to be shown; empty when live


def framework(
    name: str,
    stated: Mapping[str, str] | None = None,
    installed: Mapping[str, str] | None = None,
    *,
    beside: Collection[str] = (),
) -> Framework:
    """The framework called ``name`` in the stated versions, and for the rest the installed ones.

    Versions that the user ``stated`` win; ``installed`` are by default those of this Python. The
    libraries of adapters, and of kernels, are some of them where a workload needs them
    (``beside``). Raises UsageError: an unknown name or package, or a version as in
    :class:`Framework`."""
    known = framework_name(name)
    stated = check_stated({} if stated is None else stated)
    found = installed_versions() if installed is None else installed
    needed = version_table().frameworks[known].oldest.keys() - (OF_WORKLOADS - set(beside))
    fallback = {package: found[package] for package in needed if package in found}
    return Framework(name=known, versions={**fallback, **stated})


def check_stated(versions: Mapping[str, str]) -> Mapping[str, str]:
    """Versions that a user gave, once each is known to be one. Raises UsageError: there is no such
    package, or it is no version."""
    for package, version in versions.items():
        if package not in version_table().packages:
            raise UnknownNameError("framework_version", package, version_table().packages)
        _release(package, version)
    return versions


def installed_versions() -> dict[str, str]:
    """Releases of the known packages in this Python's environment; none of them is imported."""
    return releases_of(version_table().packages)


def not_installed(
    stated: Framework, installed: Mapping[str, str] | None = None
) -> Iterator[tuple[str, str, str]]:
    """Package, version stated, and the one that is installed, where the two differ.

    The last is empty for a package that is not installed. By default ``installed`` are the releases
    of this Python.
    """
    here = installed_versions() if installed is None else installed
    for package, version in stated.versions.items():
        if here.get(package) != version:
            yield package, version, here.get(package, "")


def packages_beside(workload: Workload, device: Device = Device.CPU) -> tuple[str, ...]:
    """The packages that training a workload needs beside its framework's own; on fake tensors as on
    a CPU, which the probe program has a kernel of its own for."""
    packing = workload.packing
    varlen = packing is not None and packing.variant is PackingVariant.VARLEN
    eight_bit = workload.optimizer is Optimizer.ADAMW_8BIT
    adapter = workload.adapter
    quantizes = adapter is not None and adapter.quantizes
    wanted = {
        EIGHT_BIT_PACKAGE: eight_bit,
        ADAPTER_PACKAGE: adapter is not None,
        FOUR_BIT_PACKAGE: quantizes or workload.optimizer in OF_BITSANDBYTES,
        FLASH_PACKAGE: varlen and device is Device.CUDA,
    }
    return tuple(package for package, is_needed in wanted.items() if is_needed)


def no_dtensors(optimizer: Optimizer, framework: Framework, *, splits: bool) -> str:
    """Why it steps no parameters that are sharded, or split by tensor parallelism (``splits``);
    empty where it does."""
    why = NO_DTENSORS.get(optimizer, "")
    if not why or framework.fsdp_version == 2 or splits:
        return why
    flat = "FSDP1 shards plain tensors, but flat ones, without rows and columns"
    return "" if optimizer in OF_BITSANDBYTES else flat


def no_optimizer(workload: Workload, framework: Framework) -> str:
    """Why these versions have no such optimizer; empty where they do."""
    if workload.optimizer is not Optimizer.MUON:
        return ""
    if framework.name is FrameworkName.TRAINER:  # ``OptimizerNames`` in training_args.py, 5.23
        return "is none of the Trainer's optimizers; ask with --framework accelerate"
    old = framework.too_old("torch", MUON_BY_TORCH)
    needed = f"needs torch {MUON_BY_TORCH.strip('>=')} or newer, and the question names {old}"
    return old and needed


def releases_of(packages: Iterable[str]) -> dict[str, str]:
    """Releases of those of ``packages`` that are installed, in the form of :class:`Framework`.

    None of them is imported: their metadata says it, and is read once in a process.
    """
    found = {package: _installed(package) for package in packages}
    return {package: release for package, release in found.items() if release}


@cache
def _installed(package: str) -> str:
    try:
        return _release(package, metadata.version(package))
    except metadata.PackageNotFoundError:
        return ""


def parse_stated_versions(texts: Iterable[str]) -> dict[str, str]:
    """Versions by package from texts such as ``accelerate=1.10.0`` (``==`` is read too). Raises
    UsageError: not of that form, an unknown package, or two versions of one package."""
    stated: dict[str, str] = {}
    for text in texts:
        package, equals, version = text.partition("=")
        package, version = package.strip().lower(), version.removeprefix("=").strip()
        if not equals or not package or not version:
            raise UsageError("framework_version", text, "must look like accelerate=1.10.0")
        check_stated({package: version})
        release = _release(package, version)
        if stated.setdefault(package, release) != release:
            raise UsageError("framework_version", text, f"{package} is given in two versions")
    return stated


def knob_rules(framework: Framework) -> tuple[KnobRule, ...]:
    """All that is known of the knobs in these versions. Knobs without a rule are live."""
    return tuple(
        rule for rule in version_table().rules if rule.holds(framework.name, framework.versions)
    )


@lru_cache(maxsize=256)
def knob_effect(
    framework: Framework, knob: str, conditions: frozenset[Condition] = frozenset()
) -> KnobEffect:
    """Finds what the framework does with ``knob`` when all of ``conditions`` hold of the
    configuration.

    A knob that is inactive at a value that trains wrongly is refused.
    """
    rules = [r for r in knob_rules(framework) if r.knob == knob and r.when <= conditions]
    refused = [rule for rule in rules if rule.effect is Effect.REFUSED]
    inactive = [rule for rule in rules if rule.effect is Effect.INACTIVE]
    if inactive and all(rule.value != inactive[0].value for rule in refused):
        refused = inactive[:1]
    if not refused:
        return KnobEffect(effect=Effect.LIVE)
    first, values = refused[0], tuple(dict.fromkeys(rule.value for rule in refused))
    return KnobEffect(effect=first.effect, values=values, why=first.why)


def flag_differs(framework: Framework) -> str:
    """Why FSDP2's option does not checkpoint layers in these versions; empty where it does."""
    family = {framework.family(replicated=False)}
    found = (
        rule.why
        for rule in version_table().rules
        if rule.effect is Effect.BY_SCRIPT
        and rule.knob == "activation_checkpointing"
        and rule.holds(framework.name, framework.versions)
        and rule.when <= family
    )
    return next(found, "")


def version_notes(framework: Framework) -> tuple[str, ...]:
    """Sentences that go with an answer for these versions: caveats, and unchecked releases."""
    table = version_table()
    caveats = [
        entry.note
        for entry in table.notes
        if framework.name in entry.frameworks
        and all(
            meets(framework.versions[package], requirement)
            for package, requirement in entry.versions.items()
            if package in framework.versions
        )
    ]
    unchecked = [
        f"{package} {version} is newer than {table.packages[package].newest}, the newest release"
        " that the version table was checked against"
        for package, version in framework.versions.items()
        if Version(version) > Version(table.packages[package].newest)
    ]
    return (*caveats, *unchecked)


def framework_name(name: object) -> FrameworkName:
    """The framework of a name. Raises UnknownNameError: there is none."""
    if name not in list(FrameworkName):
        raise UnknownNameError("framework", str(name), FrameworkName)
    return FrameworkName(str(name))


# Those whose users train over weights in fp32. Configurations for accelerate say ``mixed_precision:
# bf16`` (TRL 0.24, ``trl/accelerate_configs/fsdp2.yaml`` and its neighbours). DeepSpeed's ``bf16``
# keeps fp32 weights for the optimizer, and trains a copy of them.
MIXED = frozenset({FrameworkName.ACCELERATE, FrameworkName.TRAINER, FrameworkName.DEEPSPEED})


def usual_precision(name: FrameworkName, device: Device) -> Precision:
    """The precision of a question that states none: what users of the framework train in.

    Few CPUs have units for bf16: without them a step takes many times as long as in fp32. Nanotron
    runs on GPUs alone, and is known in bf16 alone.
    """
    if device is Device.CPU and name is not FrameworkName.NANOTRON:
        return Precision.FP32
    return Precision.BF16_MIXED if name in MIXED else Precision.BF16


def usual_reduce_dtype(name: FrameworkName, precision: Precision) -> ReduceDtype | None:
    """In what the framework reduces gradients unasked; ``None`` for the precision's own format."""
    if name not in MIXED or precision is not Precision.BF16_MIXED:
        return None
    # DeepSpeed's is that of the model, cast to bf16
    return ReduceDtype.BF16 if name is FrameworkName.DEEPSPEED else ReduceDtype.FRAMEWORK


def usual_tensor_parallel(name: FrameworkName) -> TensorParallel:
    """How layers are split where a question does not say it: transformers' own plans gather logits,
    and split no sequence."""
    plans = name in (FrameworkName.ACCELERATE, FrameworkName.TRAINER)
    return TensorParallel.GATHERED_LOGITS if plans else TensorParallel.SEQUENCE_PARALLEL


def usual_loss_kernel(name: FrameworkName) -> LossKernel:
    """What computes a fused loss: what the framework's own option does (``use_liger_kernel`` of
    ``TrainingArguments``), else code of the script's."""
    return LossKernel.LIGER if name is FrameworkName.TRAINER else LossKernel.CHUNKED


def same_release(one: str, other: str) -> bool:
    """Tells whether two versions are one release: ``2.13.0+cpu`` and ``2.13.0`` are."""
    try:
        return Version(Version(one).public) == Version(Version(other).public)
    except InvalidVersion:  # of a build of somebody's own
        return one == other


def _release(package: str, version: object) -> str:
    """``1.10`` and ``1.10.0+cu130`` as ``1.10.0``, so that equal versions compare equal."""
    try:
        parsed = Version(version) if isinstance(version, str) and len(version) <= 64 else None
    except InvalidVersion:
        parsed = None
    if parsed is None or parsed.epoch or max(parsed.release) > LARGEST_NUMBER:
        raise UsageError(
            "framework_version", f"{package}={version}", "must be a version such as 1.10.0"
        )
    numbers = [*parsed.release, 0, 0][: max(3, len(parsed.release))]
    return ".".join(map(str, numbers)) + parsed.public.removeprefix(
        ".".join(map(str, parsed.release))
    )
