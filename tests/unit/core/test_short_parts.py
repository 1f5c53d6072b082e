"""Settings in a few words."""

import pytest

from tuner.core.configuration import KNOBS, Checkpointing, Settings, Sharding, short_parts


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (Settings(), "ddp · micro-batch 1"),
        (
            Settings(
                sharding=Sharding.FULL_SHARD,
                micro_batch_size=2,
                gradient_accumulation_steps=4,
                sync_each_batch=False,
            ),
            "full shard · micro-batch 2 × 4 · sync at the end",
        ),
        (
            Settings(
                sharding=Sharding.HYBRID_SHARD,
                tp_size=2,
                tp_recompute_allgather=True,
                pp_size=4,
                activation_checkpointing=Checkpointing.FULL,
                cpu_offload=True,
            ),
            "hybrid shard · tensor parallel 2 · gather again · pipeline 4 · micro-batch 1"
            " · checkpointing · offload",
        ),
    ],
)
def test_what_matters_is_told(settings: Settings, words: str) -> None:
    assert " · ".join(short_parts(settings)) == words


def test_every_knob_off_its_default_shows() -> None:
    others = {
        "sharding": Sharding.FULL_SHARD,
        "activation_checkpointing": Checkpointing.FULL,
        "sync_each_batch": False,
        "tp_recompute_allgather": True,
        "cpu_offload": True,
    }
    for knob in KNOBS:
        changed = Settings(**{knob: others.get(knob, 2)})
        assert short_parts(changed) != short_parts(Settings()), knob
