"""What frameworks do with the knobs, by their versions; and how versions are stated."""

import pytest

from tuner.catalog.versions import Condition, Effect
from tuner.core.framework import (
    Framework,
    FrameworkName,
    framework,
    installed_versions,
    knob_effect,
    parse_stated_versions,
)
from tuner.errors import UnknownNameError, UsageError

NEWEST = {"torch": "2.13.0", "accelerate": "1.15.0", "transformers": "5.23.0", "nanotron": "0.4.0"}
DDP, FSDP1, FSDP2 = Condition.DDP, Condition.FSDP1, Condition.FSDP2
OFFLOAD = Condition.CPU_OFFLOAD
LIVE, FIXED_ON, FIXED_OFF = (
    (Effect.LIVE, ()),
    (Effect.INACTIVE, (True,)),
    (Effect.INACTIVE, (False,)),
)
MUST_BE_OFF = (Effect.REFUSED, (True,))


def stack(name, **stated):
    return framework(name, stated, installed=NEWEST)


def sync_effect(framework, *conditions):
    return knob_effect(framework, "sync_each_batch", frozenset(conditions))


# What sync_each_batch does: framework, family, stated versions.
SYNC = [
    ("accelerate", FSDP2, {"accelerate": "1.10.0"}, FIXED_ON),
    ("accelerate", DDP, {"accelerate": "1.10.0"}, LIVE),
    ("accelerate", FSDP2, {"accelerate": "1.11.0"}, LIVE),
    # A candidate of a fix is not credited with it.
    ("accelerate", FSDP2, {"accelerate": "1.11.0rc1"}, FIXED_ON),
    ("accelerate", FSDP2, {"accelerate": "99.1"}, LIVE),
    *(
        ("accelerate", family, {"accelerate": version}, effect)
        for family in (DDP, FSDP1)
        for version, effect in (
            ("0.27.2", FIXED_OFF),
            ("0.28.0", MUST_BE_OFF),
            ("0.30.1", MUST_BE_OFF),
            ("0.31.0", LIVE),
            ("1.5.2", LIVE),
        )
    ),
    ("accelerate", Condition.DEEPSPEED, {}, FIXED_ON),
    ("trainer", DDP, {"transformers": "4.39.3"}, FIXED_OFF),
    ("trainer", DDP, {"transformers": "4.40.0"}, LIVE),
    ("trainer", DDP, {"transformers": "4.46.1"}, LIVE),
    ("trainer", DDP, {"transformers": "4.46.2"}, (Effect.REFUSED, (False, True))),
    ("trainer", DDP, {"transformers": "4.46.3"}, FIXED_OFF),
    ("trainer", DDP, {"transformers": "5.1.0"}, FIXED_OFF),
    ("trainer", DDP, {"transformers": "5.2.0"}, LIVE),
    # The Trainer keeps its own count of optimizer steps.
    ("trainer", DDP, {"transformers": "4.45.2", "accelerate": "0.30.1"}, LIVE),
    # The older of two fixes decides.
    ("trainer", FSDP2, {"transformers": "5.1.0"}, FIXED_OFF),
    ("trainer", FSDP2, {"accelerate": "1.10.0"}, FIXED_ON),
    ("trainer", FSDP2, {"transformers": "5.1.0", "accelerate": "1.10.0"}, FIXED_ON),
    ("nanotron", DDP, {}, FIXED_OFF),
    ("deepspeed", DDP, {}, FIXED_OFF),
    ("deepspeed", Condition.DEEPSPEED, {}, FIXED_ON),
]


def test_sync_each_batch_by_release():
    for name, family, stated, expected in SYNC:
        found = sync_effect(stack(name, **stated), family)
        assert (found.effect, found.values) == expected, (name, family, stated)


def test_fsdp2_needs_its_releases():
    for name, stated, fsdp in (
        ("accelerate", {"accelerate": "0.31.0"}, 1),
        ("accelerate", {"accelerate": "1.5.2"}, 1),
        ("accelerate", {"accelerate": "1.6.0", "torch": "2.5.1"}, 2),
        ("accelerate", {"accelerate": "1.7.0", "torch": "2.5.1"}, 1),
        ("accelerate", {"accelerate": "1.7.0", "torch": "2.6.0"}, 2),
        ("accelerate", {"torch": "2.13.0+cu130"}, 2),
        ("trainer", {"transformers": "4.50.3"}, 1),
        ("trainer", {"transformers": "4.51.0"}, 2),
    ):
        found = stack(name, **stated)
        assert found.fsdp_version == fsdp, (name, stated)
        assert found.family(replicated=False) is (FSDP2 if fsdp == 2 else FSDP1)
        assert found.family(replicated=True) is DDP


def test_fsdp1_with_cpu_offload_must_not_synchronize_each_batch():
    for name in ("accelerate", "trainer"):
        refused = sync_effect(stack(name, accelerate="1.5.2"), FSDP1, OFFLOAD)
        assert (refused.effect, refused.values) == MUST_BE_OFF
        assert "overwrites" in refused.why
        live = sync_effect(stack(name), FSDP2, OFFLOAD)
        assert live.effect is Effect.LIVE
    # A knob that does not act is not refused for a value that it never takes.
    old = sync_effect(stack("accelerate", accelerate="0.27.2"), FSDP1, OFFLOAD)
    assert (old.effect, old.values) == FIXED_OFF


def test_versions_are_normalized_and_stated_ones_win():
    found = framework("accelerate", {"accelerate": "1.10"})
    assert found.versions["accelerate"] == "1.10.0"
    assert found.versions["torch"] == installed_versions()["torch"]
    first = stack("accelerate", accelerate="1.10", torch="2.13.0+cpu")
    second = stack("accelerate", torch="2.13", accelerate="v1.10.0")
    assert first == second
    assert hash(first) == hash(second)
    assert list(first.versions) == ["accelerate", "torch", "transformers"]
    assert stack("accelerate", accelerate="1.11rc1").versions["accelerate"] == "1.11.0rc1"
    assert Framework.from_dict(first.as_dict()) == first
    assert framework("torch", installed={}).versions == {}
    here = installed_versions()
    assert {"torch", "accelerate", "transformers"} <= here.keys()
    assert all("+" not in version for version in here.values())
    for name in FrameworkName:
        assert framework(name, installed=NEWEST).name is name


def test_versions_that_cannot_be_used():
    for name, stated, message in (
        ("accelerate", {"accelerate": "latest"}, "must be a version"),
        ("accelerate", {"accelerate": ""}, "must be a version"),
        ("accelerate", {"accelerate": "1!1.0"}, "must be a version"),
        ("accelerate", {"accelerate": "1" * 100}, "must be a version"),
        ("accelerate", {"accelerate": "10000.0"}, "must be a version"),
        ("accelerate", {"accelerate": "0.19.0"}, "older than 0.24"),
        ("torch", {"torch": "2.5.1"}, "older than 2.6"),
        ("trainer", {"transformers": "4.30"}, "older than 4.38"),
        ("torch", {"nanotron": "0.4"}, "framework torch depends on the versions of accelerate"),
        ("accelerate", {"acelerate": "1.10.0"}, "did you mean accelerate"),
    ):
        with pytest.raises(UsageError, match=message) as caught:
            framework(name, stated, installed=NEWEST)
        assert caught.value.field == "framework_version"
    with pytest.raises(UsageError, match=r"accelerate is not installed here: state its"):
        framework("accelerate", installed={"torch": "2.13.0"})
    with pytest.raises(UnknownNameError, match="did you mean accelerate"):
        framework("acelerate")
    with pytest.raises(UsageError, match="must be a version"):
        Framework.from_dict({"name": "torch", "versions": {"torch": 2.13}})


def test_stated_versions_as_text():
    read = parse_stated_versions(["accelerate=1.10", "Torch==2.13.0+cpu", "torch=2.13"])
    assert read == {"accelerate": "1.10.0", "torch": "2.13.0"}
    for texts, message in (
        (["accelerate"], "must look like"),
        (["accelerate="], "must look like"),
        (["=1.0"], "must look like"),
        (["numpy=2.0"], "no such name"),
        (["torch=2.13", "torch=2.12"], "two versions"),
        (["torch=new"], "must be a version"),
    ):
        with pytest.raises(UsageError, match=message):
            parse_stated_versions(texts)


def test_the_library_of_adapters_counts_where_one_is_trained():
    here = {"torch": "2.13.0", "accelerate": "1.15.0", "transformers": "5.23.0", "peft": "0.21.0"}
    for name in ("torch", "accelerate", "trainer"):
        assert "peft" not in framework(name, {}, here).versions
        assert framework(name, {}, here, beside=["peft"]).versions["peft"] == "0.21.0"
    assert framework("torch", {"peft": "0.13"}, here, beside=["peft"]).versions["peft"] == "0.13.0"
