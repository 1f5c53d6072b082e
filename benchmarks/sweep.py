"""The public runs that predictions are compared with, as questions of ours."""

import csv
from dataclasses import dataclass
from functools import cache
from math import log2
from pathlib import Path

from tuner.core.cluster import Cluster, parse_cluster
from tuner.core.configuration import Settings
from tuner.core.workload import Workload
from tuner.model import ModelConfig, read_model_config

DATA = Path(__file__).parent / "data"


@dataclass(frozen=True, kw_only=True)
class Run:
    """One row: the question, and what was measured (``None`` where the run failed)."""

    model: str
    gpus: int
    workload: Workload
    cluster: Cluster
    settings: Settings
    ok: bool
    memory_gib: float | None
    step_time_s: float | None

    @property
    def name(self) -> str:
        """The workload: one model on one number of GPUs."""
        return f"{self.model}, {self.gpus} GPUs"

    @property
    def tokens_per_s(self) -> float:
        """Measured tokens per second and GPU."""
        assert self.step_time_s is not None
        settings = self.settings
        sequences = settings.micro_batch_size * settings.gradient_accumulation_steps
        sequences *= settings.data_parallel_size(self.gpus)
        return sequences * self.workload.sequence_length / (self.gpus * self.step_time_s)

    @property
    def fitted_on(self) -> bool:
        """Every second workload: neighbors in GPUs alternate, and so do the models.

        Of vTrain's, only the interval of what nothing was fitted on was taken from them.
        """
        if self.model in ("1B", "8B"):
            return (round(log2(self.gpus)) + (self.model == "8B")) % 2 == 1
        shape, batch = self.workload.model, self.workload.global_batch_size
        steps = round(log2(self.gpus)) + round(log2(batch)) + shape.layers // 4
        return (steps + shape.hidden_size // 1024) % 2 == 1


def nanotron_runs() -> list[Run]:
    with (DATA / "nanotron_sweep_h100.csv").open() as file:
        return [_nanotron(row) for row in csv.DictReader(file)]


@cache
def _model(name: str, layers: int, hidden: int, heads: int, ffn: int, vocab: int) -> ModelConfig:
    config = {
        "model_type": "llama",
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "intermediate_size": ffn,
        "vocab_size": vocab,
        "max_position_embeddings": 4096,
        # The sweep's model FLOPs show that the 1B's embedding counts once, and twice in pipelines.
        "tie_word_embeddings": name == "1B",
    }
    return read_model_config(config, name)


@cache
def _cluster(gpus: int, kind: str) -> Cluster:
    return parse_cluster(f"{max(1, gpus // 8)}x{min(gpus, 8)}x{kind}")


def _nanotron(row: dict[str, str]) -> Run:
    number = {k: int(row[k]) for k in row if row[k].isdigit()}
    ok, sequence = row["outcome"] == "ok", number["sequence_length"]
    batch, gpus = number["global_batch_size"], number["gpus"]
    rate = float(row["tokens_per_s_per_gpu"]) if ok else None
    # Where the batch is not this product, the rate is still of what was run.
    sequences = number["micro_batch_size"] * number["gradient_accumulation_steps"] * number["dp"]
    shape = (number[k] for k in ("layers", "hidden", "heads", "ffn", "vocab"))
    return Run(
        model=row["model"],
        gpus=gpus,
        workload=Workload(
            model=_model(row["model"], *shape), sequence_length=sequence, global_batch_size=batch
        ),
        cluster=_cluster(gpus, "h100-80gb"),
        settings=Settings.from_dict(
            {
                "sharding": "zero1" if row["zero_stage"] == "1" else "ddp",
                "tp_size": number["tp"],
                "tp_recompute_allgather": number["tp"] > 1,
                "pp_size": number["pp"],
                "micro_batch_size": number["micro_batch_size"],
                "gradient_accumulation_steps": number["gradient_accumulation_steps"],
                "sync_each_batch": False,
            }
        ),
        ok=ok,
        memory_gib=float(row["memory_gib"]) if ok and row["memory_gib"] else None,
        step_time_s=sequences * sequence / (gpus * rate) if rate else None,
    )


def vtrain_runs() -> list[Run]:
    """All rows of vTrain: Megatron-DeepSpeed's GPT, every activation computed again.

    The vocabulary is not stated; 51200 is Megatron's for GPT-2. The pipeline is cut by nanotron's
    rule, which is close to Megatron's equal parts.
    """
    with (DATA / "vtrain_single_node_a100.csv").open() as file:
        return [_vtrain(row) for row in csv.DictReader(file)]


@cache
def _gpt(layers: int, hidden: int, heads: int, sequence: int) -> ModelConfig:
    config = {
        "model_type": "gpt2",
        "n_layer": layers,
        "n_embd": hidden,
        "n_head": heads,
        "n_positions": sequence,
        "vocab_size": 51200,
    }
    return read_model_config(config, "gpt")


def _vtrain(row: dict[str, str]) -> Run:
    n = {k: int(v) for k, v in row.items() if v.isdigit()}
    model = _gpt(n["layers"], n["hidden"], n["heads"], n["sequence_length"])
    batch, micro = n["global_batch_size"], n["micro_batch_size"]
    size = f"h{n['hidden']} l{n['layers']} s{n['sequence_length']} b{batch}"
    return Run(
        model=size,
        gpus=n["gpus"],
        workload=Workload(
            model=model, sequence_length=n["sequence_length"], global_batch_size=batch
        ),
        cluster=_cluster(n["gpus"], "a100-80gb"),
        settings=Settings.from_dict(
            {
                "tp_size": n["tp"],
                "pp_size": n["pp"],
                "micro_batch_size": micro,
                "gradient_accumulation_steps": batch // micro // n["dp"],
                "sync_each_batch": False,
                "activation_checkpointing": "full",
            }
        ),
        ok=True,
        memory_gib=None,
        step_time_s=float(row["iteration_time_ms"]) / 1e3,
    )
