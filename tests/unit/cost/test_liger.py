"""Liger's fused loss, against what its kernels allocated.

The figures are of liger-kernel 0.8.5 run by Triton's interpreter on a CPU, where it adds a part to
the weight's gradient by copies: tensors that a Llama of one layer with a hidden size of 64 had from
its last norm to the loss, beyond those of the probe program's chunked loss.
"""

import pytest

from tuner.client.cases import read_case
from tuner.cost.prediction import LIGER_NOTE, predict
from tuner.cost.script import more_bytes, parts_of
from tuner.errors import UsageError

LLAMA = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 4096,
}  # fmt: skip
STACK = {"accelerate": "1.15.0", "torch": "2.13.0", "transformers": "5.23.0"}


def case_of(
    liger,
    *,
    precision="bf16",
    model="llama-3.1-8b",
    sequence_length=4096,
    sharding="full_shard",
    **more,
):
    """A case of the Trainer with this release of liger-kernel, or with what is given."""
    settings = {"sharding": sharding, "micro_batch_size": 1, "fused_loss": True}
    workload = {"model": model, "sequence_length": sequence_length, "global_batch_size": 8}
    versions = {**STACK, "liger-kernel": liger}
    given = {"framework": {"name": "trainer", "versions": versions}, "settings": settings, **more}
    workload["precision"] = precision
    return read_case({"workload": workload, "cluster": "8xh100-80gb", **given})


@pytest.mark.parametrize(
    ("vocabulary", "tokens", "precision", "counted"),
    [
        (4096, 512, "bf16", -462_852),
        (4096, 512, "bf16_mixed", 61_436),
        (4096, 512, "fp32", -921_604),
        (8000, 300, "bf16", 701_596),
        (8000, 300, "bf16_mixed", 1_725_596),
    ],
)
def test_its_bytes_are_those_that_its_kernels_allocate(vocabulary, tokens, precision, counted):
    case = case_of(
        "0.8.0",
        model={**LLAMA, "vocab_size": vocabulary},
        sequence_length=tokens,
        precision=precision,
        sharding="ddp",
    )
    question = case.question
    found = more_bytes(question.workload, case.settings, question.cluster, question.framework)
    logits = 4 * tokens * vocabulary  # in fp32
    assert found == pytest.approx(counted, abs=logits / 200 * 8)


def predicted(liger, **more):
    case = case_of(liger, **more)
    question = case.question
    parts = question.workload, question.cluster, question.framework, case.settings
    return predict(*parts, script=case.script)


def test_releases_that_copy_the_heads_gradient_need_that_much_more():
    """Of 128,256 x 4096 elements: a product in bf16, and a copy in fp32."""
    old, new = predicted("0.8.2"), predicted("0.8.5")
    assert old.by_phase["loss"] - new.by_phase["loss"] == 6 * 128256 * 4096
    assert {p for p, size in old.by_phase.items() if size != new.by_phase[p]} == {"loss"}
    assert LIGER_NOTE in new.notes


def test_its_bytes_are_said_to_be_arithmetic_and_widen_the_interval_without_rates_too():
    mine = {"nodes": 1, "gpus_per_node": 8, "gpu": {"name": "mine", "memory_bytes": 2**37}}
    found = predicted("0.8.2", cluster=mine, sequence_length=32768)
    assert found.step_time_s.value is None
    assert LIGER_NOTE in found.notes
    chunked = predicted("0.8.2", cluster=mine, sequence_length=32768, framework="accelerate")
    assert LIGER_NOTE not in chunked.notes
    width, usual = (
        (one.allocated_bytes.high or 0) / (one.allocated_bytes.value or 1)
        for one in (found, chunked)
    )
    assert max(found.by_phase, key=lambda phase: found.by_phase[phase]) == "loss"
    assert width > usual


def test_a_case_says_what_fuses_its_loss():
    """As the Trainer's own, and apart from the chunked one: it has 32 parts, not 8."""
    trainer, torch = predicted("0.8.5"), {"framework": {"name": "torch", "versions": STACK}}
    chunked, liger = (
        predicted("", **torch, script=script) for script in ({}, {"loss_kernel": "liger"})
    )
    assert liger.by_phase == trainer.by_phase
    assert liger.by_phase["loss"] < chunked.by_phase["loss"]
    assert (liger.step_time_s.value or 0) > (chunked.step_time_s.value or 0)
    assert parts_of(case_of("0.8.5").question.workload, case_of("0.8.5").settings) == (32, 128)
    whole = {"sharding": "full_shard", "micro_batch_size": 1}
    with pytest.raises(UsageError, match="fused_loss must be true"):
        case_of("", **torch, script={"loss_kernel": "liger"}, settings=whole)
    with pytest.raises(UsageError, match="loss_kernel"):
        case_of("", **torch, script={"loss_kernel": "cut"})


OLD = {**STACK, "transformers": "4.40.0", "liger-kernel": "0.8.5"}
TP_2 = {"sharding": "full_shard", "micro_batch_size": 1, "fused_loss": True, "tp_size": 2}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"cluster": "cpu:2"}, "on GPUs only"),
        ({"model": "gpt2", "sequence_length": 1024}, "none for gpt2"),
        ({"settings": TP_2}, "fused_loss is false, not true as asked: with model parallelism"),
        ({"framework": {"name": "trainer", "versions": OLD}}, "transformers 4.40.0 cannot be told"),
    ],
)  # fmt: skip
def test_a_case_names_ligers_kernels_only_where_they_run(more, said):
    """By what they are, whatever framework the case is of."""
    given = {"framework": {"name": "torch", "versions": STACK}, **more}
    with pytest.raises(UsageError, match=r"script\.loss_kernel") as caught:
        case_of("", **given, script={"loss_kernel": "liger"})
    assert said in str(caught.value)
