from itertools import product

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from tuner.catalog.versions import Condition, Effect, version_table

TABLE = version_table()


def _borders(package):
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


def test_rules_never_contradict_each_other():
    for framework in TABLE.frameworks:
        packages = sorted(TABLE.frameworks[framework].oldest)
        families = [Condition.DDP, Condition.FSDP1, Condition.FSDP2, Condition.DEEPSPEED]
        for chosen in product(*(_borders(package) for package in packages)):
            versions = dict(zip(packages, chosen, strict=True))
            holding = [entry for entry in TABLE.rules if entry.holds(framework, versions)]
            for family in families:
                dead = {}
                for rule in holding:
                    if rule.effect is Effect.INACTIVE and rule.when <= {
                        family,
                        Condition.CPU_OFFLOAD,
                    }:
                        dead.setdefault(rule.knob, set()).add(rule.value)
                assert all(len(values) == 1 for values in dead.values()), (versions, family)
