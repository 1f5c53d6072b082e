"""What a script's command cannot vary: its space, and what is refused."""

import pytest

from tests.unit.script.conftest import BATCH
from tuner.core.configuration import KNOBS, Checkpointing, Sharding, parse_settings
from tuner.core.script import Launch
from tuner.errors import UsageError
from tuner.space import check_settings, enumerate_space, settings_notes


def varied(question):
    """Knobs with several values in the space, with these."""
    legal = enumerate_space(question).legal
    values = {knob: {getattr(settings, knob) for settings in legal} for knob in KNOBS}
    return {knob: found for knob, found in values.items() if len(found) > 1}


def test_only_what_is_named_varies(ask):
    assert varied(ask()).keys() == {"micro_batch_size", "gradient_accumulation_steps"}
    more = (*BATCH, "{activation_checkpointing=full?--ac}", "--tp={tp_size}")
    found = varied(ask(more, knobs={"sharding": ("full_shard",)}))
    assert found["tp_size"] == {1, 2}
    assert "activation_checkpointing" in found
    assert "sharding" not in found


def test_what_is_not_named_may_be_stated(ask):
    question = ask(knobs={"sharding": ("full_shard",)})
    space = enumerate_space(question)
    assert {settings.sharding for settings in space.legal} == {Sharding.FULL_SHARD}
    assert any("so it is as stated" in dead.why for dead in space.dead_knobs)


def test_accelerate_is_told_by_its_file(ask):
    question = ask(name="accelerate", launch=Launch.ACCELERATE)
    found = varied(question)
    assert {Sharding.DDP, Sharding.SHARD_GRAD_OP, Sharding.FULL_SHARD} == found["sharding"]
    plain = [s for s in enumerate_space(question).legal if s.sharding is Sharding.DDP]
    assert {s.activation_checkpointing for s in plain} == {Checkpointing.NONE}


def test_accelerate_defers_synchronization_unless_told(ask):
    for name, value in (("accelerate", False), ("torch", True)):
        legal = enumerate_space(ask(name=name, cluster="cpu:2")).legal
        several = [s for s in legal if s.gradient_accumulation_steps > 1]
        assert {s.sync_each_batch for s in several} == {value}


def test_settings_of_a_probe_are_told_what_cannot_be_had(ask):
    written = parse_settings("sharding=full_shard,micro_batch_size=2")
    given = {"sharding", "micro_batch_size"}
    assert check_settings(ask(), written, given=given).sharding is Sharding.DDP
    (note,) = [n for n in settings_notes(ask(), written, given=given) if n.knob == "sharding"]
    assert "is ddp, not full_shard as asked" in note.why


@pytest.mark.parametrize(
    ("arguments", "more", "said"),
    [
        (BATCH, {"knobs": {"sharding": ("ddp", "full_shard")}}, "use it, or state one"),
        (("--lr", "1"), {}, "names neither {micro_batch_size} nor"),
        (("--lr", "1"), {"knobs": {"micro_batch_size": (2,)}}, "nothing varies"),
        (BATCH, {"launch": Launch.ACCELERATE}, "launch: got 'accelerate'; starts scripts with"),
    ],
)
def test_what_is_refused(ask, arguments, more, said):
    with pytest.raises(UsageError) as error:
        ask(arguments, **more)
    assert said in str(error.value)
