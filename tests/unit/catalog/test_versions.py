from itertools import product

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from tuner.catalog.versions import (
    Condition,
    Effect,
    VersionRule,
    meets,
    meets_all,
    version_table,
)
from tuner.core.configuration import KNOBS

TABLE = version_table()


@pytest.mark.parametrize("entry", TABLE.rules, ids=lambda entry: entry.rule.knob)
def test_every_rule_is_complete_and_has_a_source(entry: VersionRule) -> None:
    assert len(entry.rule.source) > 20
    assert len(entry.rule.why) > 20
    assert entry.rule.effect in (Effect.DEAD, Effect.REFUSED)
    assert KNOBS[entry.rule.knob].kind is type(entry.rule.value)
    assert entry.frameworks
    assert entry.frameworks <= TABLE.frameworks.keys()
    for framework in entry.frameworks:
        assert entry.versions.keys() <= TABLE.frameworks[framework].oldest.keys()


def test_frameworks_packages_and_notes_have_sources() -> None:
    entries = [*TABLE.frameworks.values(), *TABLE.packages.values(), *TABLE.notes]
    assert all(len(entry.source) > 10 for entry in entries)


def test_requirements_use_the_two_operators_that_are_compared() -> None:
    requirements = [
        *(entry.versions for entry in TABLE.rules),
        *(entry.versions for entry in TABLE.notes),
        *(one for framework in TABLE.frameworks.values() for one in framework.fsdp2),
    ]
    operators = {
        bound.operator
        for versions in requirements
        for text in versions.values()
        for bound in SpecifierSet(text)
    }
    assert operators == {">=", "<"}


def test_bounds_are_plain_comparisons() -> None:
    assert meets("1.10.1", ">=1.6,<1.11")
    assert not meets("1.11.0", ">=1.6,<1.11")
    assert meets("1.11.0.dev0", "<1.11")  # a development build may lack the fix
    assert not meets_all({"torch": "2.13.0"}, {"accelerate": ">=1"})


def _borders(package: str) -> list[str]:
    """Every version at which some rule begins or ends, and one past the newest."""
    texts = [
        text
        for versions in (
            *(entry.versions for entry in TABLE.rules),
            *(one for framework in TABLE.frameworks.values() for one in framework.fsdp2),
        )
        for name, text in versions.items()
        if name == package
    ]
    borders = {bound.version for text in texts for bound in SpecifierSet(text)}
    borders |= {framework.oldest.get(package, "99") for framework in TABLE.frameworks.values()}
    return sorted(borders, key=Version)


@pytest.mark.parametrize("framework", TABLE.frameworks)
def test_rules_never_contradict_each_other(framework: str) -> None:
    packages = sorted(TABLE.frameworks[framework].oldest)
    families = [Condition.DDP, Condition.FSDP1, Condition.FSDP2, Condition.DEEPSPEED]
    for chosen in product(*(_borders(package) for package in packages)):
        versions = dict(zip(packages, chosen, strict=True))
        holding = [
            entry.rule
            for entry in TABLE.rules
            if framework in entry.frameworks and meets_all(versions, entry.versions)
        ]
        for family in families:
            dead: dict[str, set[bool | int]] = {}
            for rule in holding:
                if rule.effect is Effect.DEAD and rule.when <= {family, Condition.CPU_OFFLOAD}:
                    dead.setdefault(rule.knob, set()).add(rule.value)
            assert all(len(values) == 1 for values in dead.values()), (versions, family)
