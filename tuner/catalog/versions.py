"""Reads what versions of the frameworks do with a knob, from ``versions.toml``."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache, lru_cache
from importlib.resources import files

from packaging.specifiers import SpecifierSet
from packaging.version import Version


class Effect(StrEnum):
    """Effects of a version on a knob."""

    LIVE = "live"  # what it is set to
    INACTIVE = "inactive"  # always the same, whatever it is set to
    REFUSED = "refused"  # it trains wrongly with some value
    BY_SCRIPT = "by_script"  # a launcher's option does something else: the script must say it


class Condition(StrEnum):
    """Conditions under which a rule applies."""

    DDP = "ddp"  # parameters are replicated, gradients all-reduced
    FSDP1 = "fsdp1"  # sharded by FullyShardedDataParallel
    FSDP2 = "fsdp2"  # sharded by fully_shard
    DEEPSPEED = "deepspeed"  # DeepSpeed ZeRO 2 or 3
    TENSOR_PARALLEL = "tensor_parallel"  # layers are split over ranks, by transformers' own plan
    CPU_OFFLOAD = "cpu_offload"  # parameters and optimizer state in host memory


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobRule:
    """One thing that is known of a knob in some versions of frameworks."""

    frameworks: frozenset[str]  # names of the frameworks
    versions: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Requirements by package, such as ``{"accelerate": ">=0.28,<0.31"}``; all must be met."""
    knob: str  # the knob's name
    effect: Effect  # ``inactive``, ``refused`` or ``by_script``
    value: bool | int | str
    """The only value that acts (inactive), that trains wrongly (refused), or that an option
    gets wrong (by_script)."""
    when: frozenset[Condition]  # all of these must hold of the settings; empty means always
    why: str  # the reason, fit to be shown
    source: str  # where that is known from

    def holds(self, framework: str, versions: Mapping[str, str]) -> bool:
        """Tells whether it holds for a framework in these versions."""
        return framework in self.frameworks and meets_all(versions, self.versions)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageVersions:
    """Versions of one package in the table."""

    newest: str  # the newest release that the rules were checked against
    source: str  # what was read


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkVersions:
    """Versions of one framework in the table."""

    oldest: Mapping[str, str]
    """The packages that decide its knobs and probes, each with the oldest version described."""
    required: Sequence[str]  # the packages whose versions must be known
    fsdp2: Sequence[Mapping[str, str]]
    """Requirements of versions, one of which must be met for FSDP2; otherwise FSDP1."""
    source: str  # where that is known from


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionNote:
    """Something a user of these versions should know, which changes no knob."""

    frameworks: Sequence[str]  # names of the frameworks
    versions: Mapping[str, str] = field(default_factory=dict)
    """Requirements by package; a package whose version is not known meets them."""
    note: str  # the note, fit to be shown
    source: str  # where that is known from


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionTable:
    """All of ``versions.toml``."""

    packages: Mapping[str, PackageVersions]  # by distribution name
    frameworks: Mapping[str, FrameworkVersions]  # by framework name
    rules: tuple[KnobRule, ...]  # in the file's order
    notes: tuple[VersionNote, ...]  # in the file's order


@cache
def version_table() -> VersionTable:
    """The table as shipped, read once. A rule with several ``when`` becomes several."""
    text = files("tuner.catalog").joinpath("versions.toml").read_text(encoding="utf-8")
    data = tomllib.loads(text)
    return VersionTable(
        packages={name: PackageVersions(**row) for name, row in data["packages"].items()},
        frameworks={name: FrameworkVersions(**row) for name, row in data["frameworks"].items()},
        rules=tuple(
            KnobRule(
                **row
                | {
                    "frameworks": frozenset(row["frameworks"]),
                    "effect": Effect(row["effect"]),
                    "when": frozenset(map(Condition, conditions)),
                }
            )
            for row in data["rules"]
            for conditions in row.get("when", [[]])
        ),
        notes=tuple(VersionNote(**row) for row in data["notes"]),
    )


@lru_cache(maxsize=1024)  # asked a thousand times for each answer, of a few versions
def meets(version: str, requirement: str) -> bool:
    """Tells whether ``version`` is in a range such as ``>=0.28,<0.31``.

    Bounds are compared as plain versions: 1.11.0.dev0 and 1.11.0rc1 are older than 1.11, so a
    development build is not credited with a fix that it may lack.
    """
    parsed = Version(version)
    return all(
        parsed >= Version(bound.version)
        if bound.operator == ">="
        else parsed < Version(bound.version)
        for bound in SpecifierSet(requirement)
    )


def meets_all(versions: Mapping[str, str], requirements: Mapping[str, str]) -> bool:
    """Tells whether every package of ``requirements`` has a known version that meets its range."""
    return all(
        package in versions and meets(versions[package], requirement)
        for package, requirement in requirements.items()
    )
