"""nanotron's blocks: fields, and what is refused."""

from typing import Any

import pytest

from tests.unit.launchfiles.conftest import TORCH
from tests.unit.launchfiles.readers import header_of
from tuner.core.framework import Framework, FrameworkName
from tuner.core.workload import Optimizer, Precision
from tuner.launchfiles import FORMATS, About, export, why_not
from tuner.launchfiles.nanotron import configuration

NANOTRON = Framework(name=FrameworkName.NANOTRON, versions={"nanotron": "0.4"})
DEFERRED = "sharding=zero1,sync_each_batch=false,gradient_accumulation_steps=2"


def _parts(case: Any, settings: str, **more: Any) -> Any:
    given: dict[str, Any] = {"cluster": "2x8xh100-80gb", "framework": NANOTRON, **more}
    return case(model="llama-3.1-8b", settings=settings, **given).parts()


def test_the_product_of_the_axes_is_the_cluster(case: Any) -> None:
    values = configuration(*_parts(case, f"{DEFERRED},tp_size=2,pp_size=4"))["parallelism"]
    assert (values["dp"], values["tp"], values["pp"]) == (2, 2, 4)
    assert values["tp_mode"] == "REDUCE_SCATTER"
    assert values["pp_engine"] == "1f1b"


@pytest.mark.parametrize("recompute", [True, False])
def test_the_release_is_not_told_a_field_that_it_refuses(
    case: Any, about: About, recompute: bool
) -> None:
    """nanotron reads its configuration strictly."""
    settings = f"{DEFERRED},tp_size=2,tp_recompute_allgather={str(recompute).lower()}"
    parts = _parts(case, settings)
    assert configuration(*parts)["parallelism"]["tp_recompute_allgather"] is recompute
    assert "from its repository" in header_of(export("nanotron", *parts, about))
    alone = _parts(case, DEFERRED)
    assert "tp_recompute_allgather" not in configuration(*alone)["parallelism"]
    assert "from its repository" not in header_of(export("nanotron", *alone, about))


def test_it_is_merged_and_started_by_its_own_script(case: Any) -> None:
    question, _ = _parts(case, DEFERRED)
    known = FORMATS["nanotron"]
    assert known.merge is not None
    assert known.argv is not None
    assert known.argv(question, "a.yaml")[-3:] == ("run_train.py", "--config-file", "a.yaml")


@pytest.mark.parametrize(
    ("settings", "more", "reason"),
    [
        ("sharding=ddp", {"framework": TORCH}, "--framework nanotron"),
        ("sharding=full_shard", {}, "--knob sharding=ddp,zero1"),
        ("sharding=ddp", {"cluster": "cpu:2"}, "trains on GPUs"),
        ("sharding=ddp", {"workload": {"precision": Precision.FP32}}, "--precision bf16"),
        ("sharding=ddp", {"workload": {"optimizer": Optimizer.ADAMW_8BIT}}, "--optimizer adamw"),
        (
            "sharding=ddp,gradient_accumulation_steps=2,sync_each_batch=true",
            {},
            "--knob sync_each_batch=false",
        ),
        ("sharding=zero1,cpu_offload=true", {}, "--knob cpu_offload=false"),
    ],
)
def test_what_nanotron_has_not_is_refused(
    case: Any, settings: str, more: dict[str, Any], reason: str
) -> None:
    assert reason in str(why_not("nanotron", *_parts(case, settings, **more)))
