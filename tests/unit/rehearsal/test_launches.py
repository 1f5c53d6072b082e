"""What operators are noted as, on tensors that have shapes only."""

import pytest
import torch
from torch.utils import flop_counter

from tuner.cost.time.compute import AMOUNTS
from tuner.cost.time.rehearsed import What
from workers.probe.dry.work import AMOUNTS as COUNTED
from workers.probe.dry.work import amounts_of
from workers.rehearsal.launches import WHATS

aten = torch.ops.aten
BATCH, TOKENS, WIDTH = 2, 512, 64


def meta(*shape):
    return torch.empty(*shape, device="meta", dtype=torch.bfloat16)


def amounts(func, *args, tokens=0, sequence=1):
    return amounts_of(func, args, {}, func(*args), tokens=tokens, sequence=sequence)


def test_both_sides_have_the_same_words():
    assert tuple(What) == WHATS
    assert COUNTED == AMOUNTS


def test_a_products_weight_is_what_has_no_tokens():
    args = meta(BATCH * TOKENS, 128), meta(128, 256)
    found = amounts(aten.mm.default, *args, tokens=BATCH * TOKENS)
    assert found["product_flops"] == 2 * BATCH * TOKENS * 128 * 256
    assert found["weight_bytes"] == 2 * 128 * 256
    assert found == amounts(aten.mm.default, *args)  # the longest side, where none is known


@pytest.mark.parametrize("columns", [256, 252])
def test_products_with_an_odd_vocabulary_are_told(columns):
    args = meta(TOKENS, 128), meta(128, columns)
    found = amounts(aten.mm.default, *args, tokens=TOKENS)
    assert found.get("unaligned_flops", 0) == (columns % 8 > 0) * found["product_flops"]
    exact = [one.float() for one in args]
    assert "unaligned_flops" not in amounts(aten.mm.default, *exact, tokens=TOKENS)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("where", ["", "_for_cpu"])
def test_grouped_queries_count_where_torchs_formulas_know_of_none(monkeypatch, where, backward):
    def before_2_13(known):
        def equal_heads(*shapes):
            assert len({shape[1] for shape in shapes}) == 1
            return known(*shapes)

        return equal_heads

    for name in ("sdpa_flop_count", "sdpa_backward_flop_count"):
        monkeypatch.setattr(flop_counter, name, before_2_13(getattr(flop_counter, name)))
    query, key = meta(BATCH, 4, TOKENS, WIDTH), meta(BATCH, 2, TOKENS, WIDTH)
    operator = f"_scaled_dot_product_flash_attention{where}"
    func, args = getattr(aten, operator).default, (query, key, key, 0.0, True)
    out = func(*args)
    if backward:
        func = getattr(aten, f"{operator}_backward").default
        counts = () if where else (None, None, TOKENS, TOKENS)
        args = query, *args[:3], *out[:2], *counts, 0.0, True, *out[6:8]
    found = amounts(func, *args)
    flops = 2 * BATCH * 4 * TOKENS * (TOKENS + 128) / 2 * WIDTH
    which = "attention_backward_flops" if backward else "attention_flops"
    assert found[which] == (5 if backward else 2) * flops


@pytest.mark.parametrize("causal", [False, True])
def test_flash_attention_skips_what_is_after_a_query(causal):
    shape = BATCH, 4, TOKENS, WIDTH
    query, key = meta(*shape), meta(BATCH, 2, TOKENS, WIDTH)
    func = aten._scaled_dot_product_flash_attention.default
    found = amounts(func, query, key, key, 0.0, causal)
    keys = (TOKENS + 128) / 2 if causal else TOKENS
    flops = 2 * 2 * BATCH * 4 * TOKENS * keys * WIDTH
    assert found == {"kernels": 1, "attention_flops": flops, "attention_scores": flops / WIDTH}


def test_operators_on_lists_write_what_they_change():
    one, other = [meta(100), meta(50)], [meta(100), meta(50)]
    found = amounts(aten._foreach_add_.List, one, other)
    assert found == {"kernels": 1, "moved_bytes": 3 * 2 * 150}


def test_views_and_bookkeeping_launch_nothing():
    assert amounts(aten.t.default, meta(3, 4)) == {}
    assert amounts(aten.t_.default, meta(3, 4)) == {}
    assert amounts(aten.empty_like.default, meta(3)) == {}
