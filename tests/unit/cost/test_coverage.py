from dataclasses import replace

from tuner.core.adapter import Adapter
from tuner.core.bounds import choice
from tuner.core.cluster import parse_cluster
from tuner.core.configuration import Settings, Sharding
from tuner.core.framework import framework
from tuner.core.workload import Loss, Optimizer, Precision, Workload
from tuner.cost.prediction import uncovered, uncovered_settings
from tuner.model import published_model as read

EIGHT = parse_cluster("8xh100-80gb")
SIXTY_FOUR = parse_cluster("8x8xh100-80gb")
OLD = {"accelerate": "0.28.0", "transformers": "4.38.0", "torch": "2.2.0"}


def workload(model="llama-3.1-8b", **more):
    return Workload(
        model=read(model),
        sequence_length=1024,
        global_batch_size=8,
        optimizer=choice("optimizer", Optimizer, more.get("optimizer", "adamw")),
        precision=choice("precision", Precision, more.get("precision", "bf16")),
    )


def test_nanotron_is_covered_where_it_was_fitted():
    for asked, word in [
        (workload("mixtral-8x7b"), "mixtral"),
        (workload("gpt2"), "gpt2"),
        (workload(precision="bf16_mixed"), "bf16_mixed"),
        (workload(precision="fp32"), "fp32"),
        (workload(optimizer="sgd"), "sgd"),
        (workload(optimizer="adamw_8bit"), "adamw_8bit"),
        (replace(workload(), loss=Loss.OWN_DTYPE), "loss=own_dtype"),
        (replace(workload(), adapter=Adapter()), "adapters"),
    ]:
        assert word in uncovered(asked, framework("nanotron", {}))
        assert uncovered(asked, framework("torch", {})) == ""


FULL = Settings(sharding=Sharding.FULL_SHARD, micro_batch_size=1)


def test_experts_that_fsdp1_would_not_pad_are_not_covered():
    mixtral, old = workload("mixtral-8x7b"), framework("accelerate", OLD)
    assert "FSDP1" in uncovered_settings(mixtral, old, SIXTY_FOUR, FULL)
    assert uncovered_settings(mixtral, old, EIGHT, FULL) == ""  # one expert for each rank
    assert uncovered_settings(mixtral, framework("torch", {}), SIXTY_FOUR, FULL) == ""
    assert uncovered_settings(workload(), old, SIXTY_FOUR, FULL) == ""


def test_experts_that_are_not_packed_are_not_covered():
    mixtral = workload("mixtral-8x7b")
    stated = {"accelerate": "1.7.0", "torch": "2.7.0"}
    apart = framework("accelerate", {**stated, "transformers": "4.57.6"})
    packed = framework("accelerate", {**stated, "transformers": "5.0.0"})
    assert "before 5" in uncovered_settings(mixtral, apart, SIXTY_FOUR, FULL)
    assert uncovered_settings(mixtral, apart, EIGHT, FULL) == ""
    assert uncovered_settings(workload(), apart, SIXTY_FOUR, FULL) == ""
    assert uncovered_settings(mixtral, packed, SIXTY_FOUR, FULL) == ""
