"""Full fine-tuning, LoRA and QLoRA against published runs: ``make bench-adapters``, some seconds.

Mistral-7B on 1, 2 and 4 A100 (IBM's fms-acceleration), by arithmetic, as the tables' own releases
and scripts say; nothing is fitted to a row. What those runs have and the product does not is
counted here, each from source (:class:`Run`): FSDP1 beside a frozen model, and fused kernels of
norms, rotary positions and the loss. It writes ``benchmarks/results/adapters.json``.
"""

import csv
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

from common import Goal, report
from judging import spearman

from tuner.core.adapter import Adapter, AdapterMethod
from tuner.core.cluster import Cluster, parse_cluster
from tuner.core.configuration import Checkpointing, Settings, Sharding
from tuner.core.evaluation import Evaluation
from tuner.core.framework import Framework, framework
from tuner.core.workload import LossKernel, Precision, Workload
from tuner.cost.constants import default_costs
from tuner.cost.prediction import predict
from tuner.cost.script import Script
from tuner.cost.time.compute import adapter_work, moved_bytes
from tuner.model import published_model, read_model_config
from tuner.model.shape import linears

DATA = Path(__file__).parent / "data" / "lora_a100.csv"
# The tables' own releases (``scripts/benchmarks/refs/requirements*.txt``).
_STACK = {"accelerate": "1.0.1", "torch": "2.4.1"}
VERSIONS = {
    "a100_80gb.csv": {**_STACK, "transformers": "4.48.1"},
    "a100_80gb_liger.csv": {**_STACK, "transformers": "4.45.2"},
}
# flash-attn takes a window itself (``use_flash_attn`` in defaults.yaml), and one of 4096 tokens
# hides nothing in as many; torch's attention would take it as a mask.
_MISTRAL = published_model("mistral-7b-v0.1")
MODEL = read_model_config({**_MISTRAL.as_config(), "sliding_window": None}, name=_MISTRAL.name)
METHODS = ("full", "lora", "qlora")


@dataclass(frozen=True)
class Run:
    """A row of the table."""

    row: Mapping[str, str]

    @property
    def tokens(self) -> int:
        return int(self.row["micro_batch"]) * int(self.row["seq_len"])

    @property
    def gpus(self) -> int:
        return int(self.row["n_gpus"])

    @property
    def fused(self) -> bool:
        """Whether norms, rotary positions and the loss are Triton's (fms-acceleration-foak)."""
        return bool(self.row["fused_kernels"])

    @property
    def autocasts(self) -> bool:
        return "autocast" in self.row["precision"] and "no autocast" not in self.row["precision"]

    @property
    def workload(self) -> Workload:
        """One GPU trains bf16 weights, with autocast too; FSDP1 makes fp32 of what it trains under
        autocast (``Accelerator.prepare_model``, 1.0.1), and peft of adapters in any case
        (``autocast_adapter_dtype``)."""
        adapter = _adapter(self.row)
        wide = adapter is not None or (self.autocasts and self.gpus > 1)
        return Workload(
            model=MODEL,
            sequence_length=int(self.row["seq_len"]),
            global_batch_size=self.gpus * int(self.row["micro_batch"]),
            precision=Precision.BF16_MIXED if wide else Precision.BF16,
            adapter=adapter,
        )

    @property
    def settings(self) -> Settings:
        return Settings(
            sharding=Sharding.DDP if self.gpus == 1 else Sharding.FULL_SHARD,
            micro_batch_size=int(self.row["micro_batch"]),
            activation_checkpointing=Checkpointing.FULL,
            fused_loss=bool(self.row["fused_loss"]),
        )

    @property
    def cluster(self) -> Cluster:
        return parse_cluster(f"{self.gpus}xa100-80gb")

    @property
    def stack(self) -> Framework:
        return framework("accelerate", VERSIONS[self.row["table"]])

    def predicted(self, *, fused_loss: bool) -> Evaluation:
        """FSDP1 wraps the layers, all else is the root's."""
        return predict(
            self.workload, self.cluster, self.stack,
            replace(self.settings, fused_loss=fused_loss),
            script=Script(one_root_unit=self.gpus > 1, loss_kernel=LossKernel.LIGER),
        )  # fmt: skip

    @cached_property
    def prediction(self) -> Evaluation:
        return self.predicted(fused_loss=self.settings.fused_loss)

    def peak_bytes(self) -> float:
        """The highest of loss, backward and optimizer, with what those runs have beside."""
        phases, logits = self.prediction.by_phase, self.tokens * MODEL.vocab_size
        # backward of the layers alone: without logits, and without the head's gradient, which a
        # fused loss leaves where the head is trained
        layers = self.predicted(fused_loss=True).by_phase["backward"]
        if self.workload.adapter is not None:
            layers -= 2 * MODEL.vocab_size * MODEL.hidden_size
        layers += self.tokens * (self._kept_by_layers() + self._kept_by_fsdp1())
        rest = {n: size for n, size in phases.items() if n != "loss"}
        if self.fused:
            del rest["backward"]  # of torch's own loss
        loss = phases["loss"]
        if self.fused:  # the last norm keeps its input in the place of an fp32 copy
            loss -= 2 * MODEL.hidden_size * self.tokens
        if self.fused and not self.settings.fused_loss:
            # keeps no log-softmax, and writes the gradient over what it took, so that backward has
            # no more (kernels/unsloth/cross_entropy_loss.py)
            loss -= 4 * logits
        return max(loss, layers, *rest.values()) + self._upcast()

    @property
    def _upcasts(self) -> bool:
        """Whether what is between layers, and what norms give, is fp32.

        On one GPU TRL's ``SFTTrainer`` makes norms fp32 (``prepare_model_for_kbit_training``, then
        ``peft_module_casting_to_bf16``), and all that they give is. It does not where weights are
        on no GPU yet, as for FSDP, nor does the plugin of fms-acceleration, whose runs have
        ``c_attn`` among their targets, or fused kernels.
        """
        plain = self.gpus == 1 and not self.fused and "c_attn" not in self.row["lora"]
        return self.row["method"] == "qlora" and plain

    def _upcast(self) -> float:
        """Bytes of layers' inputs in fp32, and of what the last norm takes."""
        return (4 - 2) * MODEL.hidden_size * MODEL.layers * self.tokens * self._upcasts

    def _kept_by_layers(self) -> float:
        """Bytes of a token that a layer's forward keeps more, or less, than the product's."""
        hidden, found = MODEL.hidden_size, 0.0
        kv = MODEL.kv_heads * MODEL.head_dim
        if self.fused and self.workload.adapter is not None:
            # a norm keeps its input, of which the first is the layer's, in the place of an fp32
            # copy (kernels/unsloth/rms_layernorm.py)
            found += (2 - 2 * 4) * hidden
        elif self.fused:  # and of the narrow copy that a weight's gradient takes
            found += (2 - 2 * (4 + 2)) * hidden
        if "4.45" in self.stack.versions["transformers"]:
            # keys and values of all heads go to flash-attn (``MistralFlashAttention2.forward``)
            found += 2 * 2 * (MODEL.heads * MODEL.head_dim - kv)
        if self.workload.adapter is not None and not self.autocasts:
            # what the first matrix of an adapter takes, and keeps, is fp32
            adapted = self.workload.adapter.adapted(MODEL)
            found += sum((4 - 2) * one.inputs for one in adapted)
        return found

    def _kept_by_fsdp1(self) -> float:
        """Bytes of a token beyond a layer's input for each, that wait for the end of backward.

        A frozen flat parameter is freed by a hook on the layer's inputs, which is kept to the end
        (``_register_post_backward_reshard_only_hook`` in torch/distributed/fsdp/_runtime_utils.py).
        With it are the input that a reentrant checkpoint has detached, and its gradient
        (``CheckpointFunction.backward`` in torch/utils/checkpoint.py): at the first layer, two
        tensors of each other in the place of none, where the last layer has the others' inputs.
        """
        frozen = self.workload.adapter is not None and self.gpus > 1
        return 2.0 * MODEL.hidden_size * (MODEL.layers - 1) * frozen

    def tokens_per_s(self) -> float:
        """Fused kernels read and write once what operators do many times; casts are FSDP1's too."""
        seconds = 1 / (self.prediction.tokens_per_s_per_gpu.value or 0.0)
        return 1 / (seconds - self.fused * self._saved_s() + self._casts_s() + self._upcast_s())

    def _upcast_s(self) -> float:
        """Seconds of a token that operators on fp32 take more, and casts where a quantized layer is
        entered and left (``Linear4bit.forward`` in bitsandbytes/nn/modules.py)."""
        more = moved_bytes(MODEL, 4) - moved_bytes(MODEL, 2)
        more += (4 + 2) * sum(one.inputs + one.outputs for one in linears(MODEL))
        return self._upcasts * (3 + 1) * self._seconds_of(more)

    def _casts_s(self) -> float:
        """Seconds of a token that casts take under FSDP1: a matrix of an adapter is fp32 outside of
        its unit, where peft casts to its format (``LoraLayer._cast_input_dtype``), though not
        under autocast beside a quantized layer (``Linear4bit.forward`` in peft's lora/bnb.py)."""
        adapter = self.workload.adapter
        if adapter is None or self.gpus == 1 or (adapter.quantizes and self.autocasts):
            return 0.0
        costs, rate = default_costs().torch, self.cluster.gpu.memory_bytes_per_s
        assert rate is not None
        wide, narrow = (adapter_work(self.workload, size, costs)[1] for size in (4, 2))
        return (3 + 1) * (wide - narrow) * MODEL.layers / rate

    def _saved_s(self) -> float:
        """Seconds of a token that fused norms and rotary positions take less: what
        :func:`tuner.cost.time.compute.moved_bytes` counts of them, and one read and one write."""
        rotated = (MODEL.heads + MODEL.kv_heads) * MODEL.head_dim
        of_norm = 2 * (2 + 4) + 8 + 4 + 8 + 2 * 2
        less = 2 * (of_norm - 2 * 2) * MODEL.hidden_size + (10 - 2) * 2 * rotated
        return (3 + 1) * self._seconds_of(less)

    def _seconds_of(self, moved: float) -> float:
        """Seconds in which all layers' operators move so many bytes in each; a step does so in
        forward, in forward again, and twice in backward."""
        rate = self.cluster.gpu.memory_bytes_per_s
        assert rate is not None
        return default_costs().torch.traffic_factor * moved * MODEL.layers / rate

    def _kernels(self) -> str:
        loss = ", Liger's loss" if self.row["fused_loss"] else ""
        return f"fused{loss}" if self.fused else "torch's"

    def judged(self) -> dict[str, Any]:
        """Measured, predicted, and the error of both; of what was out of memory the verdict."""
        peak, text = self.peak_bytes(), self.row["peak_allocated_gib"]
        own, found = self.prediction.by_phase, self.prediction
        needed = peak + found.outside_bytes
        ran, speed = bool(text), self.tokens_per_s()
        return {
            "method": self.row["method"],
            "kernels": self._kernels(),
            "gpus": self.gpus,
            "micro_batch": int(self.row["micro_batch"]),
            "measured_gib": float(text) if ran else None,
            "predicted_gib": peak / 2**30,
            "product_gib": max(own.values()) / 2**30,
            "memory_error": peak / 2**30 / float(text) - 1 if ran else None,
            "ran": ran,
            "fits": needed <= found.limit_bytes,
            "measured_tokens_per_s": float(self.row["tokens_per_s_per_gpu"]) if ran else None,
            "predicted_tokens_per_s": speed,
            "speed_error": speed / float(self.row["tokens_per_s_per_gpu"]) - 1 if ran else None,
        }


def rows() -> list[dict[str, Any]]:
    with DATA.open() as file:
        return [Run(row).judged() for row in csv.DictReader(file) if row["method"] in METHODS]


def _adapter(row: Mapping[str, str]) -> Adapter | None:
    """The adapter of ``r=16 alpha=16 dropout=0.1 target=q_proj k_proj``; none of an empty text."""
    text = row["lora"]
    if not text:
        return None
    numbers, targets = text.split(" target=")
    rank, alpha, dropout = (float(part.partition("=")[2]) for part in numbers.split())
    names = tuple(name for name in targets.split() if name != "c_attn")  # Mistral has none
    return Adapter(
        method=AdapterMethod(row["method"]), rank=int(rank), alpha=alpha, dropout=dropout,
        target_modules=names,
    )  # fmt: skip


def goals(found: list[dict[str, Any]]) -> list[Goal]:
    asked = []
    for method in METHODS:
        some = [one for one in found if one["method"] == method and one["ran"]]
        memory = [abs(one["memory_error"]) for one in some]
        speed = [abs(one["speed_error"]) for one in some]
        figures = (
            ("peak allocated, median error", "<= 0.04", median(memory)),
            ("peak allocated, largest error", "<= 0.12", max(memory)),
            ("tokens/s, median error", "<= 0.15", median(speed)),
        )
        asked += [Goal(name=f"{method}: {name}", goal=goal, value=v) for name, goal, v in figures]
    ran = [one for one in found if one["ran"]]
    order = spearman([(r["predicted_tokens_per_s"], r["measured_tokens_per_s"]) for r in ran])
    right = [one["fits"] == one["ran"] for one in found]
    told = sum(right) / len(right)
    asked += [
        Goal(name="tokens/s, rank correlation (Spearman)", goal=">= 0.95", value=order),
        Goal(name="verdicts of fitting that are right", goal=">= 0.95", value=told),
    ]
    return asked


if __name__ == "__main__":
    told = rows()
    report("adapters", goals(told), told)
