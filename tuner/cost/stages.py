"""How a model is cut into pipeline stages, and the counts that costs are made of."""

from dataclasses import dataclass
from functools import lru_cache

from tuner.model import ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Counts of a model that take a while to find."""

    layer: float
    """Parameters of one decoder layer, on average."""
    active: float
    """Parameters of a layer that one token uses."""
    embedding: int
    """Parameters of the token embedding; the output head has as many."""
    attention: int
    """Channels of all query heads."""
    kept: int
    """Channels that one layer keeps for backward, per token."""
    mlp: int
    """Inner channels of the MLP that one token goes through."""


@lru_cache(maxsize=64)
def counts(model: ModelConfig) -> Counts:
    """The counts of a model.

    ``kept`` is inputs and outputs of norms and blocks (6 hidden), queries, keys and values with
    their rotated copies, attention's output, and four tensors of the MLP: Korthikanti et al. 2022
    (https://arxiv.org/abs/2205.05198), for a gated MLP and fused attention.
    """
    width, kv = model.heads * model.head_dim, model.kv_heads * model.head_dim
    mlp = model.experts_per_token * model.expert_intermediate_size or model.intermediate_size
    return Counts(
        layer=(model.parameters - model.embedding_parameters) / model.layers,
        active=(model.active_parameters - model.embedding_parameters) / model.layers,
        embedding=model.vocab_size * model.hidden_size,
        attention=width,
        kept=6 * model.hidden_size + 2 * (width + kv) + 4 * mlp,
        mlp=mlp,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What one pipeline stage holds."""

    layers: int
    """Decoder layers."""
    embedding: bool
    """The token embedding."""
    head: bool
    """The output head."""
    blocks: int
    """Parts of any kind, also those without parameters; a stage without any cannot run."""


@lru_cache(maxsize=1024)
def stages(model: ModelConfig, pp_size: int) -> tuple[Stage, ...]:
    """Stages as nanotron cuts them (``nanotron/models/base.py``, ``build_model``).

    Parts in order go to a stage until it has more than its share of the cost; layers and head
    cost their parameters, the embedding, the last norm, the cast and the loss nothing.
    """
    found = counts(model)
    parts = [("embedding", 0.0)] + [("layers", found.active)] * model.layers
    parts += [("norm", 0.0), ("head", float(found.embedding)), ("cast", 0.0), ("loss", 0.0)]
    total = sum(cost for _, cost in parts)
    held: list[list[str]] = [[] for _ in range(pp_size)]
    stage, done = 0, 0.0
    for name, cost in parts:
        held[stage].append(name)
        done += cost
        if done > total * (stage + 1) / pp_size * (1 + 1e-12) and stage < pp_size - 1:
            stage += 1
    return tuple(
        Stage(
            layers=names.count("layers"),
            embedding="embedding" in names,
            head="head" in names,
            blocks=len(names),
        )
        for names in held
    )


def stage_parameters(model: ModelConfig, stage: Stage) -> float:
    """Parameters of a stage, before tensor parallelism; a tied head counts beside no embedding."""
    found = counts(model)
    head = stage.head and not (model.tied_embeddings and stage.embedding)
    return stage.layers * found.layer + (stage.embedding + head) * found.embedding
