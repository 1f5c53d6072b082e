"""Models are built without memory, and filled alike however they are cut."""

import sys

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from tests.process.probe import specs
from tuner.catalog.models import names
from tuner.core.adapter import Adapter
from tuner.cost.memory import step as memory_step
from tuner.cost.memory.tensors import model_tensors
from tuner.guard.replica import small_model
from tuner.launchfiles import trainer
from tuner.model import published_model
from workers.probe import fused_loss
from workers.probe.batches import VARLEN_ON_CPU, attention_name, block_mask
from workers.probe.errors import AdapterUnavailableError, AttentionUnavailableError, outcome_of
from workers.probe.fused_loss import fuse_loss
from workers.probe.model import (
    LIGER_CONFIG,
    WeightFiller,
    add_adapter,
    build_on_meta,
    check_experts,
    decoder_layers,
    micro_batches,
    set_loss,
)
from workers.probe.quantized import add_empty_scales, quantize_layers, scales, shape_only
from workers.probe.spec import parse_spec
from workers.probe.tracker import watching

SMALL = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 64, "vocab_size": 96,
}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
MODELS = {
    "llama": {**SMALL, "tie_word_embeddings": True},
    "mistral": SMALL,
    "mixtral": {**SMALL, "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2": SMALL,
    "qwen3": {**SMALL, "head_dim": 8},
    "qwen3_moe": {**SMALL, **EXPERTS, "head_dim": 8},
    "gemma": {**SMALL, "head_dim": 8},
    "gemma2": {**SMALL, "head_dim": 8},
    "gemma3_text": {**SMALL, "head_dim": 8},
    "phi": SMALL,
    "phi3": {**SMALL, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 1},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 96, "n_positions": 64},
    "gpt_bigcode": {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 96, "n_positions": 64},
    "granite": {**SMALL, "residual_multiplier": 0.22},
    "granitemoe": {**SMALL, "num_local_experts": 4, "num_experts_per_tok": 2},
    "mpt": {"d_model": 32, "n_layers": 2, "n_heads": 4, "vocab_size": 96, "max_seq_len": 64},
}


def test_rows_of_documents_are_attended_by_the_kernel_that_is_asked_for():
    packing = {"variant": "varlen", "documents": [8, 8]}
    for how, name in ((packing, VARLEN_ON_CPU), (None, "sdpa")):
        asked = attention_name(how, torch.device("cpu"))
        for model_type, found in (("llama", name), ("gemma2", "eager" if how is None else name)):
            config = {"model_type": model_type, **MODELS[model_type]}
            model = build_on_meta(config, torch.float32, asked)
            assert model.config._attn_implementation == found


def test_what_is_not_quantized_needs_no_bitsandbytes(monkeypatch):
    for name in [*sys.modules, "bitsandbytes", "bitsandbytes.functional", "bitsandbytes.nn"]:
        if name.partition(".")[0] == "bitsandbytes":
            monkeypatch.setitem(sys.modules, name, None)
    model = build("llama")
    shape_only(model)
    add_empty_scales(model)
    assert not [*scales(model)]
    config = {"model_type": "llama", **MODELS["llama"]}
    adapter = {"quantize": "nf4", "double_quant": True}
    with pytest.raises(AdapterUnavailableError, match="needs bitsandbytes"):
        quantize_layers(build_on_meta(config, torch.float32), [model], adapter)


def test_without_its_library_varlen_is_refused_on_a_gpu():
    """And no kernel of the hub is taken in its place."""
    with pytest.raises(AttentionUnavailableError, match="needs flash-attn") as refused:
        attention_name({"variant": "varlen", "documents": [8, 8]}, torch.device("cuda"))
    assert outcome_of(refused.value, "build") == "invalid"


def test_documents_are_those_that_the_model_tells():
    """A model that hands on no positions has tokens see other documents, as in the library."""
    attention_name({"variant": "varlen"}, torch.device("cpu"))
    query, key, value = torch.randn(3, 1, 2, 16, 8)
    places = torch.cat([torch.arange(length) for length in (3, 5, 8)])[None]
    attended = AttentionInterface()[VARLEN_ON_CPU]
    for given, mask in (
        (places, block_mask(places, torch.float32)),
        (None, block_mask(torch.arange(16)[None], torch.float32)),
    ):
        found, _ = attended(torch.nn.Module(), query, key, value, None, position_ids=given)
        wanted = scaled_dot_product_attention(query, key, value, attn_mask=mask)
        torch.testing.assert_close(found, wanted.transpose(1, 2))


def build(model_type):
    return build_on_meta({"model_type": model_type, **MODELS[model_type]}, torch.float32)


def fill(model, seed=1):
    filler = WeightFiller(model, seed=seed, device=torch.device("cpu"), shard_rank=0, shard_size=1)
    buffers = dict(model.named_buffers())
    model.to_empty(device="cpu")
    for name, buffer in model.named_buffers():
        buffer.copy_(buffers[name])
    model.tie_weights()
    filler.fill(model, sharded=False)
    return model


@pytest.mark.parametrize("model_type", MODELS)
@pytest.mark.smoke
def test_every_model_trains_a_step(model_type):
    model = build(model_type)
    assert all(p.is_meta for p in model.parameters())
    assert not any(b.is_meta for b in model.buffers())
    assert len(decoder_layers(model)) == 2
    tokens = torch.randint(0, 96, (2, 16), generator=torch.Generator().manual_seed(0))
    loss = fill(model)(input_ids=tokens, labels=tokens, use_cache=False).loss
    loss.backward()
    assert loss.isfinite()
    assert 3 < loss.item() < 7  # random weights: about ln 96 = 4.6
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("model_type", ["llama", "gemma2", "phi"])
def test_a_fused_loss_and_its_gradients_are_the_models_own(model_type):
    """Plain logits, capped ones, and ones with a bias; and two losses that are not fused."""
    tokens = torch.randint(0, 96, (3, 17), generator=torch.Generator().manual_seed(0))
    labels = tokens.masked_fill(tokens < 9, -100)
    found = []
    for kind, by in (("hf", ""), ("hf", "chunked"), ("fp32", ""), ("own_dtype", "")):
        model = build(model_type)
        set_loss(model, kind, fused_by=by)
        fill(model)
        with watching(model.get_output_embeddings()) as logits:
            output = model(input_ids=tokens, labels=labels, use_cache=False)
        assert logits == [not by]
        (output.loss / 3).backward()
        norms = [float(p.grad.norm()) for p in model.parameters()]
        assert output.loss.dtype is torch.float32
        found.append([float(output.loss.detach()), *norms])
    for other in found[1:]:
        assert other == pytest.approx(found[0], rel=1e-4, abs=1e-7)


def test_a_fused_loss_leaves_the_rest_of_the_model_alone():
    """What is saved keeps its cap, also after a forward that fails; without labels, logits."""
    tokens = torch.randint(0, 96, (2, 17), generator=torch.Generator().manual_seed(0))
    own = fill(build("gemma2"))
    model = fill(build("gemma2"))
    fuse_loss(model)
    config = own.config.to_dict()
    assert config["final_logit_softcapping"]
    assert model.config.to_dict() == config
    loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
    assert model.config.to_dict() == config
    with pytest.raises(IndexError):
        model(input_ids=tokens + 96, labels=tokens, use_cache=False)
    assert model.config.to_dict() == config
    with torch.no_grad():
        logits = own(input_ids=tokens, use_cache=False).logits
        assert torch.equal(model(input_ids=tokens, use_cache=False).logits, logits)
        by_place = model(tokens, None, None, None, None, tokens, use_cache=False)
    assert torch.equal(by_place.logits, logits)
    assert float(by_place.loss) == pytest.approx(float(loss.detach()), rel=1e-4)


def test_weights_depend_on_the_seed_alone():
    first, again, other = fill(build("mistral")), fill(build("mistral")), fill(build("mistral"), 2)
    same = [torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True)]
    assert all(same)
    assert not torch.equal(first.lm_head.weight, other.lm_head.weight)


def test_a_fused_loss_is_predicted_in_the_parts_that_it_has():
    assert memory_step.LOSS_PARTS == fused_loss.LOSS_PARTS
    assert trainer.LIGER_CONFIG == LIGER_CONFIG  # the exported is the probed


@pytest.mark.parametrize(
    ("hidden", "intermediate", "dtype", "refused"),
    [
        (36, 60, torch.float32, False),
        (36, 60, torch.bfloat16, True),
        (34, 64, torch.float32, True),
        (36, 30, torch.float32, True),
    ],
)
def test_experts_that_a_grouped_product_cannot_multiply_are_refused(
    hidden, intermediate, dtype, refused
):
    sizes = {"hidden_size": hidden, "intermediate_size": intermediate, "head_dim": 8}
    config = {"model_type": "mixtral", **MODELS["mixtral"], **sizes}
    model = build_on_meta(config, dtype)
    tokens = torch.zeros((1, 8), dtype=torch.int64)
    if not refused:
        check_experts(model, dtype)
        return
    with pytest.raises(ValueError, match="16 bytes"):
        check_experts(model, dtype)
    with pytest.raises(RuntimeError, match="16 bytes"):  # why: torch itself refuses it
        filler = WeightFiller(model, seed=1, device=torch.device("cpu"), shard_rank=0, shard_size=1)
        model.to_empty(device="cpu")
        filler.fill(model, sharded=False)
        model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()


def probe(**changes):
    config = {"model_type": "llama", "vocab_size": 50}
    knobs = {"micro_batch_size": 2, "gradient_accumulation_steps": 3, "sharding": "full_shard"}
    return parse_spec(specs.spec(config, 4, **knobs, **changes))


def test_every_configuration_sees_the_same_global_batch():
    def rows(spec):
        ranks = {spec.data_parallel_rank(rank) for rank in range(spec.world_size)}
        batches = [
            batch
            for data_rank in ranks
            for batch in micro_batches(
                spec, step=5, count=spec.accumulation_counts[-1], data_rank=data_rank
            )
        ]
        return sorted(row for batch in batches for row in batch.tolist())

    plain = rows(probe())
    assert len(plain) == 24
    for knobs in ({"micro_batch_size": 1}, {"tp_size": 2}):
        values = specs.spec({"model_type": "llama", "vocab_size": 50}, 4, sharding="full_shard",
                            gradient_accumulation_steps=6, **knobs)  # fmt: skip
        assert rows(parse_spec(values)) == plain


def test_tokens_of_a_rank_are_its_own_and_of_the_step():
    spec, alone = probe(), probe(fidelity="emulated")
    first, second = (micro_batches(spec, step=s, count=3, data_rank=1) for s in (0, 1))
    assert first[0].tolist() != second[0].tolist()
    assert all(batch.untyped_storage().nbytes() == batch.nbytes for batch in first)
    drawn = micro_batches(alone, step=0, count=3, data_rank=0)
    assert [batch.shape for batch in drawn] == [batch.shape for batch in first]


@pytest.mark.filterwarnings("ignore:fan_in_fan_out")  # of GPT-2, which peft sets by itself
def test_what_peft_trains_is_what_arithmetic_counts():
    """Every matrix of an adapter, in the order of parameters, for each kind of dense model."""
    kinds = {}
    for name in names():
        kinds.setdefault(published_model(name).model_type, published_model(name))
    adapter = Adapter(rank=4)
    for model_type, published in kinds.items():
        if published.experts or published.is_traced:
            continue
        model, _ = small_model(published, 1)
        built = build_on_meta(model.as_config(), torch.bfloat16)
        wide = model_type == "llama"
        wrapped = add_adapter(built, adapter.as_dict(), trains_fp32=wide, checkpointed=False)
        trained = [p for p in wrapped.parameters() if p.requires_grad]
        counted = [(t.rows, t.columns) for t in model_tensors(model, adapter).trained]
        assert [tuple(p.shape) for p in trained] == counted, model_type
        dtype = torch.float32 if model_type == "llama" else torch.bfloat16
        assert {p.dtype for p in trained} == {dtype}, model_type
        assert {p.dtype for p in wrapped.parameters() if not p.requires_grad} == {torch.bfloat16}
    one = Adapter(rank=4, target_modules=("gate_proj", "q_proj"))
    tiny = build_on_meta({"model_type": "llama", **SMALL}, torch.float32)
    wrapped = add_adapter(tiny, one.as_dict(), trains_fp32=False, checkpointed=False)
    found = {name.split(".")[-4] for name, p in wrapped.named_parameters() if p.requires_grad}
    assert found == {"gate_proj", "q_proj"}
