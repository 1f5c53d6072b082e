"""A study of a user's own script: what its files say is what the script was told, or is refused."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest
import yaml

from tests.unit.launchfiles.conftest import a_script
from tests.unit.launchfiles.readers import header_of
from tuner.core.framework import Framework, FrameworkName
from tuner.core.study import Question
from tuner.core.workload import Optimizer, Precision
from tuner.launchfiles import FORMATS, About, Stack, export, why_not
from tuner.script import Launch

VERSIONS = {"accelerate": "1.15.0", "torch": "2.13.0", "transformers": "5.23.0"}
BATCH = ("{micro_batch_size}", "{gradient_accumulation_steps}")
NANOTRON = (
    "sharding=zero1,tp_size=4,tp_recompute_allgather=true,micro_batch_size=1"
    ",gradient_accumulation_steps=16,sync_each_batch=false"
)
NUMBERS = {"precision": Precision.BF16_MIXED, "optimizer": Optimizer.ADAMW_8BIT}
"""What a user need not have said of a script, and no file may say."""


def own(case: Any, name: str, *arguments: str, **more: Any) -> tuple[Question, Any]:
    """A question about a script, and its settings."""
    versions = {"nanotron": "0.4"} if name == "nanotron" else VERSIONS
    framework = Framework(name=FrameworkName(name), versions=versions)
    given = {"model": "llama-3.1-8b", "cluster": "8xh100-80gb", "settings": "sharding=full_shard"}
    question, settings = case(**{**given, "workload": NUMBERS, **more}).parts()
    launch = Launch.ACCELERATE if name in ("accelerate", "trainer") else Launch.TORCHRUN
    script = a_script(*BATCH, *arguments, launch=launch)
    return replace(question, framework=framework, script=script), settings


@pytest.mark.parametrize(
    ("name", "formats"),
    [
        ("torch", set()),
        ("accelerate", {"accelerate"}),
        ("trainer", {"accelerate", "trainer", "trainer-flags"}),
    ],
)
def test_files_that_are_true_of_it(case: Any, name: str, formats: set[str]) -> None:
    parts = own(case, name)
    found = {known for known in FORMATS if why_not(known, *parts) is None}
    of_any = {known for known, one in FORMATS.items() if one.stack is Stack.ANY}
    assert found == of_any | formats
    for refused in set(FORMATS) - found - {"nanotron"}:
        why = str(why_not(refused, *parts))
        assert "launch the script by its own command, which tuner studies show tells" in why


@pytest.mark.parametrize("name", ["trainer", "trainer-flags"])
def test_a_trainers_script_keeps_its_own_optimizer_and_number_formats(
    case: Any, about: About, name: str
) -> None:
    parts = own(case, "trainer")
    text = export(name, *parts, about)
    assert "per_device_train_batch_size" in text
    assert not re.search(r"\b(optim|bf16|dtype|attn_implementation)\b", text)
    own_said = "The optimizer, number formats and all else are your script's own."
    assert own_said in (header_of(text) if name == "trainer-flags" else said_beside(name, parts))
    assert "fsdp" in text


def said_beside(name: str, parts: tuple[Question, Any]) -> str:
    return " ".join(FORMATS[name].beside(*parts))


def test_a_trainers_json_has_what_its_probes_were_told(case: Any, about: About) -> None:
    more = {"settings": "sharding=ddp,micro_batch_size=2,gradient_accumulation_steps=4"}
    values = json.loads(export("trainer", *own(case, "trainer", **more), about))
    assert list(values) == [
        "run_name",
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
        "accelerator_config",
        "activation_checkpointing",
        "ddp_find_unused_parameters",
    ]


@pytest.mark.parametrize(
    ("arguments", "more", "optimizer"),
    [
        ((), set(), None),
        (("{sharding}",), set(), {"zero_stage": 1}),
        (("{activation_checkpointing}",), {"recompute_layer"}, None),
        (("{tp_size}", "{tp_recompute_allgather}"), {"tp_recompute_allgather"}, None),
    ],
)
def test_a_nanotrons_blocks_have_what_it_was_told(
    case: Any, about: About, arguments: tuple[str, ...], more: set[str], optimizer: Any
) -> None:
    parts = own(case, "nanotron", *arguments, settings=NANOTRON)
    text = export("nanotron", *parts, about)
    values = yaml.safe_load(text)
    assert set(values["parallelism"]) == {"dp", "tp", "pp"} | more
    assert values["tokens"]["micro_batch_size"] == 1
    assert values.get("optimizer") == optimizer
    assert "stays as your file has it" in header_of(text)
    assert "bfloat16" not in text
