"""Placeholders: what they name, what they become, and what is none."""

import pytest

from tuner.core.script import render, used_in
from tuner.errors import UsageError

VALUES = {"micro_batch_size": "4", "activation_checkpointing": "full", "sync_each_batch": "false"}


@pytest.mark.parametrize(
    ("text", "becomes"),
    [
        ("--micro {micro_batch_size}", "--micro 4"),
        ("{micro_batch_size}{micro_batch_size}", "44"),
        ("{activation_checkpointing=full?--recompute}", "--recompute"),
        ("{activation_checkpointing=none?--plain}", ""),
        ("{sync_each_batch=false?no_sync: true}", "no_sync: true"),
        ('{"a": {"b": {micro_batch_size}}}', '{"a": {"b": 4}}'),
        ("{}", "{}"),
        ("${{HOME}} {{micro_batch_size}}", "${HOME} {micro_batch_size}"),
        ("{{a=b?c}}", "{a=b?c}"),
        ("f'{{loss}} {loss:.3f}'", "f'{loss} {loss:.3f}'"),
    ],
)
def test_what_a_text_becomes(text, becomes):
    used_in("x", text)
    assert render(text, VALUES) == becomes


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{micro_batch}", "script arguments: got '{micro_batch}'; no such placeholder; there are"),
        ("${HOME}", "Write {{HOME}} for {HOME} itself"),
        ("{micro_batch_size=4}", "must look like"),
        ("{world_size=4?x}", "must look like"),
        ("{activation_checkpointing=some?x}", "must be one of none, selective, every_2, full"),
        ("{micro_batch_size=many?x}", "must be a positive integer"),
    ],
)
def test_what_is_refused(text, said):
    with pytest.raises(UsageError) as error:
        used_in("script arguments", text)
    assert said in str(error.value)
