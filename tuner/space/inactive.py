"""Finds the knobs that cannot act in a configuration, and says why."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

from tuner.core.configuration import Settings, Sharding
from tuner.core.framework import Condition, Effect, Framework, KnobEffect, knob_effect
from tuner.core.script import pinned
from tuner.core.study import Question

# Model types with a tensor-parallel plan that was seen to train like one process.
TENSOR_PARALLEL_MODEL_TYPES = frozenset(
    {"llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe"}
)

# Why other model types have none; the plans of those not listed were not verified.
NO_TENSOR_PARALLEL: Mapping[str, str] = {
    "gpt2": "gpt2 fuses q, k and v, and has no tensor-parallel plan",
    "phi3": "phi3 fuses q, k and v, and has no verified tensor-parallel plan",
}

# Fields of a model's configuration that must be zero or false, and why.
NO_TENSOR_PARALLEL_WITH: Mapping[str, str] = {
    "attention_dropout": "each rank would need a random stream of its own",
    "router_jitter_noise": "each rank would need a random stream of its own",
    "output_router_logits": "the router's auxiliary loss is not linear in the tokens of a rank",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """A knob that has one value in some settings."""

    knob: str
    """Its name."""
    value: Any
    """The value; ``None`` when every value is refused."""
    why: str
    """The reason."""
    by_versions: bool = False
    """Whether the framework decides it, which is worth telling wherever it holds."""
    refused: bool = False
    """Whether other values are wrong, and not only without effect."""
    when: str = ""
    """Of which settings it is so; empty where ``why`` says it, or of all."""


def fixed_by_framework(question: Question, knob: str) -> Fixed | None:
    """Finds what the framework, or the user's script, does with a knob in all configurations."""
    effect = _effect(question.framework, knob, frozenset())
    if effect.effect is not Effect.DEAD:
        return None if knob == "sync_each_batch" else fixed_by_script(question, knob)
    return Fixed(knob=knob, value=effect.values[0], why=effect.why, by_versions=True)


def fixed_by_script(
    question: Question, knob: str, settings: Settings | None = None
) -> Fixed | None:
    """The one value of a knob that the user's script is not told, in these settings or in all."""
    value, why = pinned(question, knob, settings)
    return Fixed(knob=knob, value=value, why=why, by_versions=True) if why else None


def fixed_tp_size(question: Question) -> Fixed | None:
    """Tells whether there is no tensor parallelism: by framework, model type or configuration."""
    if found := fixed_by_framework(question, "tp_size"):
        return found
    model = question.workload.model
    if model.model_type not in TENSOR_PARALLEL_MODEL_TYPES:
        unknown = f"{model.model_type} has no verified tensor-parallel plan"
        why = NO_TENSOR_PARALLEL.get(model.model_type, unknown)
        return Fixed(knob="tp_size", value=1, why=why)
    for field, why in NO_TENSOR_PARALLEL_WITH.items():
        if value := model.fields.get(field):
            return Fixed(knob="tp_size", value=1, why=f"{field} is {show(value)}, and {why}")
    return None


def canonical_class(question: Question, settings: Settings) -> tuple[Settings, list[Fixed]]:
    """Settings with each inactive knob but ``sync_each_batch`` at its value, and these knobs."""
    sizes = [f for f in (fixed_by_framework(question, "pp_size"), fixed_tp_size(question)) if f]
    settings = replace(settings, **{f.knob: f.value for f in sizes})
    later = []
    if settings.data_parallel_size(question.cluster.world_size) == 1:
        why = "one data-parallel rank has nobody to share with"
        later.append(Fixed(knob="sharding", value=Sharding.DDP, why=why))
    if settings.tp_size == 1:
        why = "with tp_size 1 there is no activation to gather again"
        named = fixed_by_framework(question, "tp_recompute_allgather")
        later.append(named or Fixed(knob="tp_recompute_allgather", value=False, why=why))
    if no_offload := fixed_by_framework(question, "cpu_offload"):
        later.append(no_offload)
    settings = replace(settings, **{f.knob: f.value for f in later})
    if question.script is not None:
        settings, told = _as_the_script_has_it(question, settings, {f.knob for f in later})
        later += told
    return settings, [*sizes, *later]


def _as_the_script_has_it(
    question: Question, settings: Settings, inactive: Collection[str]
) -> tuple[Settings, list[Fixed]]:
    """Settings with what the script is not told, of the knobs that are not inactive anyway."""
    told = []
    for knob in ("sharding", "tp_recompute_allgather", "activation_checkpointing"):
        if knob not in inactive and (fixed := fixed_by_script(question, knob, settings)):
            settings = replace(settings, **{knob: fixed.value})
            told.append(fixed)
    return settings, told


def fixed_sync(question: Question, settings: Settings) -> Fixed | None:
    """Tells whether ``sync_each_batch`` is inactive or refused in these settings."""
    knob = "sync_each_batch"
    if found := fixed_by_framework(question, knob):
        return found
    if settings.data_parallel_size(question.cluster.world_size) == 1:
        return _NOBODY_TO_SYNC_WITH
    if settings.gradient_accumulation_steps == 1:
        return _NOTHING_TO_PUT_OFF
    replicated = settings.sharding in (Sharding.DDP, Sharding.ZERO1)
    offload = {Condition.CPU_OFFLOAD} if settings.cpu_offload else set()
    conditions = {question.framework.family(replicated=replicated)} | offload
    found = _fixed_sync(_effect(question.framework, knob, frozenset(conditions)))
    return found or fixed_by_script(question, knob)


_NOBODY_TO_SYNC_WITH = Fixed(
    knob="sync_each_batch", value=True, why="one data-parallel rank has nobody to sync with"
)
_NOTHING_TO_PUT_OFF = Fixed(
    knob="sync_each_batch",
    value=True,
    why="with gradient_accumulation_steps 1 there is nothing to put off",
)


@lru_cache(maxsize=256)
def _effect(framework: Framework, knob: str, conditions: frozenset[Condition]) -> KnobEffect:
    return knob_effect(framework, knob, conditions)


@cache
def _fixed_sync(effect: KnobEffect) -> Fixed | None:
    if effect.effect is Effect.LIVE:
        return None
    refused = effect.effect is Effect.REFUSED
    left = [v for v in (True, False) if v not in effect.values] if refused else effect.values
    return Fixed(
        knob="sync_each_batch",
        value=left[0] if left else None,
        why=effect.why,
        by_versions=True,
        refused=refused,
        when="gradient_accumulation_steps above 1",
    )


def sentence(
    fixed: Fixed,
    *,
    asked: Collection[Any] = (),
    only: Collection[str] = (),
    apart: bool = False,
) -> str:
    """Says to a user which knob is inactive, and why.

    Args:
        fixed: the knob.
        asked: values that were asked for.
        only: the shardings that it is about; empty for all.
        apart: whether the knob is fixed at other values in other settings.
    """
    where = f" with {', '.join(only)}" if only else ""
    if fixed.value is None:
        return f"gradient_accumulation_steps is 1{where}: {fixed.why}"
    if apart and fixed.when:
        where += f"{' and' if where else ' with'} {fixed.when}"
    instead = f", not {show_all(asked)} as asked" if asked and fixed.value not in asked else ""
    comma = "," if instead and where else ""
    return f"{fixed.knob} is {show(fixed.value)}{instead}{comma}{where}: {fixed.why}"


def show(value: object) -> str:
    """A knob's value as a user writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def show_all(values: Collection[Any], most: int = 12) -> str:
    """Values as a user writes them, at most ``most`` of them."""
    shown = [show(value) for value in values]
    return ", ".join(shown[:most]) + (", ..." if len(shown) > most else "")
