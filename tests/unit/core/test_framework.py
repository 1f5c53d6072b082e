import pytest

from tuner.core.framework import (
    Condition,
    Effect,
    Framework,
    FrameworkName,
    framework,
    installed_versions,
    knob_effect,
    knob_rules,
    parse_stated_versions,
    sync_each_batch_effect,
    version_notes,
)
from tuner.errors import UnknownNameError, UsageError

NEWEST = {
    "torch": "2.13.0",
    "accelerate": "1.15.0",
    "transformers": "5.23.0",
    "nanotron": "0.4.0",
}
REPLICATED_OR_SHARDED = [Condition.DDP, Condition.FSDP1, Condition.FSDP2]


def stack(name: str, **stated: str) -> Framework:
    return framework(name, stated, installed=NEWEST)


def sync(name: str, family: Condition, **stated: str) -> tuple[Effect, tuple[bool | int, ...]]:
    found = sync_each_batch_effect(stack(name, **stated), family)
    return found.effect, found.values


@pytest.mark.parametrize("family", REPLICATED_OR_SHARDED)
@pytest.mark.parametrize("name", ["torch", "accelerate", "trainer"])
def test_sync_each_batch_is_live_in_what_is_installed(name: str, family: Condition) -> None:
    found = framework(name)
    assert found.fsdp_version == 2
    assert sync_each_batch_effect(found, family).effect is Effect.LIVE
    assert version_notes(found) == () or "newer than" in version_notes(found)[0]


def test_accelerate_1_10_always_synchronizes_under_fsdp2_and_obeys_under_ddp() -> None:
    assert sync("accelerate", Condition.FSDP2, accelerate="1.10.0") == (Effect.DEAD, (True,))
    assert sync("accelerate", Condition.DDP, accelerate="1.10.0") == (Effect.LIVE, ())
    assert sync("accelerate", Condition.FSDP2, accelerate="1.11.0") == (Effect.LIVE, ())
    assert stack("accelerate", accelerate="1.10.0").fsdp_version == 2


@pytest.mark.parametrize(
    ("version", "effect", "values"),
    [
        ("0.27.2", Effect.DEAD, (False,)),
        ("0.28.0", Effect.REFUSED, (True,)),
        ("0.30.0", Effect.REFUSED, (True,)),
        ("0.30.1", Effect.REFUSED, (True,)),
        ("0.31.0", Effect.LIVE, ()),
        ("1.5.2", Effect.LIVE, ()),
    ],
)
def test_older_accelerate_shards_with_fsdp1(
    version: str, effect: Effect, values: tuple[bool, ...]
) -> None:
    assert stack("accelerate", accelerate=version).fsdp_version == 1
    assert sync("accelerate", Condition.FSDP1, accelerate=version) == (effect, values)
    assert sync("accelerate", Condition.DDP, accelerate=version) == (effect, values)


@pytest.mark.parametrize(
    ("accelerate", "torch", "fsdp"),
    [
        ("1.5.2", "2.13.0", 1),
        ("1.6.0", "2.5.1", 2),
        ("1.7.0", "2.5.1", 1),
        ("1.7.0", "2.6.0", 2),
        ("1.15.0", "2.13.0+cu130", 2),
    ],
)
def test_fsdp2_needs_accelerate_and_torch(accelerate: str, torch: str, fsdp: int) -> None:
    found = stack("accelerate", accelerate=accelerate, torch=torch)
    assert found.fsdp_version == fsdp
    assert found.family(replicated=False) is (Condition.FSDP2 if fsdp == 2 else Condition.FSDP1)
    assert found.family(replicated=True) is Condition.DDP


def test_the_trainer_shards_with_fsdp2_from_4_51_on() -> None:
    assert stack("trainer", transformers="4.50.3").fsdp_version == 1
    assert stack("trainer", transformers="4.51.0").fsdp_version == 2


@pytest.mark.parametrize(
    ("transformers", "effect", "values"),
    [
        ("4.39.3", Effect.DEAD, (False,)),
        ("4.40.0", Effect.LIVE, ()),
        ("4.46.1", Effect.LIVE, ()),
        ("4.46.2", Effect.REFUSED, (False, True)),
        ("4.46.3", Effect.DEAD, (False,)),
        ("5.1.0", Effect.DEAD, (False,)),
        ("5.2.0", Effect.LIVE, ()),
    ],
)
def test_the_trainer_by_release(
    transformers: str, effect: Effect, values: tuple[bool, ...]
) -> None:
    assert sync("trainer", Condition.DDP, transformers=transformers) == (effect, values)


def test_under_fsdp2_the_older_of_the_two_fixes_decides_for_the_trainer() -> None:
    fsdp2 = Condition.FSDP2
    assert sync("trainer", fsdp2, transformers="5.1.0") == (Effect.DEAD, (False,))
    assert sync("trainer", fsdp2, accelerate="1.10.0") == (Effect.DEAD, (True,))
    both = {"transformers": "5.1.0", "accelerate": "1.10.0"}
    assert sync("trainer", fsdp2, **both) == (Effect.DEAD, (True,))


def test_the_trainer_keeps_its_own_count_of_optimizer_steps() -> None:
    versions = {"transformers": "4.45.2", "accelerate": "0.30.1"}
    assert sync("trainer", Condition.DDP, **versions) == (Effect.LIVE, ())


@pytest.mark.parametrize("name", ["accelerate", "trainer"])
def test_fsdp1_with_cpu_offload_must_not_synchronize_each_batch(name: str) -> None:
    found = stack(name, accelerate="1.5.2")
    refused = sync_each_batch_effect(found, Condition.FSDP1, cpu_offload=True)
    assert (refused.effect, refused.values) == (Effect.REFUSED, (True,))
    assert "overwrites" in refused.why
    assert refused.source
    fsdp2 = sync_each_batch_effect(stack(name), Condition.FSDP2, cpu_offload=True)
    assert fsdp2.effect is Effect.LIVE


def test_a_dead_knob_is_not_refused_for_a_value_that_it_never_takes() -> None:
    found = stack("accelerate", accelerate="0.27.2")
    effect = sync_each_batch_effect(found, Condition.FSDP1, cpu_offload=True)
    assert (effect.effect, effect.values) == (Effect.DEAD, (False,))


def test_deepspeed_always_synchronizes() -> None:
    assert sync("accelerate", Condition.DEEPSPEED) == (Effect.DEAD, (True,))


def test_nanotron_defers_synchronization_and_keeps_the_other_headline_knob() -> None:
    assert sync("nanotron", Condition.DDP) == (Effect.DEAD, (False,))
    found = stack("nanotron")
    assert knob_effect(found, "tp_recompute_allgather", set()).effect is Effect.LIVE
    assert knob_effect(found, "pp_size", set()).effect is Effect.LIVE
    assert any("August 2024" in note for note in version_notes(found))


@pytest.mark.parametrize("name", ["accelerate", "trainer"])
def test_tensor_parallelism_is_fixed_where_it_is_not_written(name: str) -> None:
    found = stack(name)
    assert knob_effect(found, "tp_size", set()).values == (1,)
    assert knob_effect(found, "tp_recompute_allgather", set()).effect is Effect.DEAD


def test_both_headline_knobs_are_live_with_plain_torch() -> None:
    assert [rule.knob for rule in knob_rules(stack("torch"))] == ["pp_size"]


def test_rules_are_plain_to_match() -> None:
    rules = knob_rules(stack("accelerate", accelerate="1.10.0"))
    matching = [r for r in rules if r.knob == "sync_each_batch" and r.when <= {"fsdp2"}]
    assert [(rule.effect, rule.value) for rule in matching] == [(Effect.DEAD, True)]


def test_stated_versions_win_over_installed_ones() -> None:
    found = framework("accelerate", {"accelerate": "1.10"})
    assert found.versions["accelerate"] == "1.10.0"
    assert found.versions["torch"] == installed_versions()["torch"]


def test_versions_are_normalized_so_that_equal_ones_are_equal() -> None:
    first = stack("accelerate", accelerate="1.10", torch="2.13.0+cpu")
    second = stack("accelerate", torch="2.13", accelerate="v1.10.0")
    assert first == second
    assert hash(first) == hash(second)
    assert list(first.versions) == ["accelerate", "torch", "transformers"]
    release = stack("accelerate", accelerate="1.11rc1").versions["accelerate"]
    assert release == "1.11.0rc1"


def test_a_candidate_of_a_fix_is_not_credited_with_it() -> None:
    assert sync("accelerate", Condition.FSDP2, accelerate="1.11.0rc1") == (Effect.DEAD, (True,))


def test_json_round_trip_takes_nothing_from_what_is_installed() -> None:
    found = stack("trainer", transformers="5.1.0")
    assert Framework.from_dict(found.as_dict()) == found


def test_newer_releases_are_used_and_said_to_be_unchecked() -> None:
    found = stack("accelerate", accelerate="99.1")
    assert sync_each_batch_effect(found, Condition.FSDP2).effect is Effect.LIVE
    assert version_notes(found) == (
        "accelerate 99.1.0 is newer than 1.15.0, the newest release that the version table was"
        " checked against",
    )


@pytest.mark.parametrize(
    ("name", "stated", "message"),
    [
        ("accelerate", {"accelerate": "latest"}, "must be a version"),
        ("accelerate", {"accelerate": ""}, "must be a version"),
        ("accelerate", {"accelerate": "1!1.0"}, "must be a version"),
        ("accelerate", {"accelerate": "1" * 100}, "must be a version"),
        ("accelerate", {"accelerate": "10000.0"}, "must be a version"),
        ("accelerate", {"accelerate": "1.999999999999"}, "must be a version"),
        ("accelerate", {"accelerate": "0.19.0"}, "older than 0.24"),
        ("torch", {"torch": "2.5.1"}, "older than 2.6"),
        ("trainer", {"transformers": "4.30"}, "older than 4.38"),
        ("torch", {"nanotron": "0.4"}, "framework torch depends on the versions of accelerate"),
        ("accelerate", {"acelerate": "1.10.0"}, "did you mean accelerate"),
    ],
)
def test_versions_that_cannot_be_used(name: str, stated: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        framework(name, stated, installed=NEWEST)
    assert caught.value.field == "framework_version"


def test_a_version_that_is_needed_and_not_known_is_asked_for() -> None:
    with pytest.raises(UsageError, match=r"accelerate is not installed here: state its"):
        framework("accelerate", installed={"torch": "2.13.0"})
    assert framework("torch", installed={}).versions == {}


def test_unknown_frameworks_and_fields() -> None:
    with pytest.raises(UnknownNameError, match="did you mean accelerate"):
        framework("acelerate")
    with pytest.raises(UsageError, match="must be a version"):
        Framework.from_dict({"name": "torch", "versions": {"torch": 2.13}})


def test_installed_versions_are_read_without_imports() -> None:
    found = installed_versions()
    assert {"torch", "accelerate", "transformers"} <= found.keys()
    assert all("+" not in version for version in found.values())


def test_stated_versions_as_text() -> None:
    assert parse_stated_versions(["accelerate=1.10", "Torch==2.13.0+cpu"]) == {
        "accelerate": "1.10.0",
        "torch": "2.13.0",
    }
    assert parse_stated_versions(["torch=2.13", "torch=2.13.0"]) == {"torch": "2.13.0"}


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["accelerate"], "must look like"),
        (["accelerate="], "must look like"),
        (["=1.0"], "must look like"),
        (["numpy=2.0"], "no such name"),
        (["torch=2.13", "torch=2.12"], "two versions"),
        (["torch=new"], "must be a version"),
    ],
)
def test_bad_stated_versions(texts: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_stated_versions(texts)


def test_every_framework_has_versions_in_the_table() -> None:
    for name in FrameworkName:
        assert framework(name, installed=NEWEST).name is name
