"""LLaMA-Factory's YAML: what it says, and what a study's answer changes in it.

Fields are those of LLaMA-Factory 0.9.4 (``src/llamafactory/hparams/``), of which those of
``TrainingArguments`` are transformers' own. Layers are checkpointed unless that is turned off
(``disable_gradient_checkpointing`` in model_args.py), and what is trained is kept in fp32 unless
``pure_bf16`` (``init_adapter`` in model/adapter.py).
"""

from collections.abc import Mapping
from typing import Any

from tuner.core.configuration import Checkpointing, Settings
from tuner.core.study import Question
from tuner.launchfiles import deepspeed as engine
from tuner.launchfiles import fine_tuning, trainer
from tuner.launchfiles.fields import Fields, Found

NAME = "llama-factory"
MARKS = frozenset({"finetuning_type", "cutoff_len"})
# Looked at beside the Trainer's.
_READ = frozenset({
    *MARKS, "stage", "quantization_bit", "double_quantization", "lora_rank", "lora_alpha",
    "lora_dropout", "lora_target", "additional_target", "packing", "neat_packing", "pure_bf16",
    "disable_gradient_checkpointing", "model_name_or_path",
})  # fmt: skip


def read(values: Mapping[str, Any]) -> Found:
    """Reads the file, or raises ``UsageError`` for a field."""
    fields = Fields(values)
    fine_tuning.pass_over_known(fields)
    if str(fields.values.get("stage") or "sft") not in ("sft", "pt"):
        fields.pass_over("stage", fine_tuning.OTHER_STEP, rules_out=True)
    kind = str(fields.values.get("finetuning_type") or "lora").lower()
    if kind == "freeze":
        fields.pass_over("finetuning_type", fine_tuning.uncounted()["use_badam"], kind)
    elif kind not in ("lora", "full"):
        effect = "this adapter is not predicted, and counted as lora"
        fields.pass_over("finetuning_type", effect, kind)
    is_whole, bits = kind in ("full", "freeze"), fields.values.get("quantization_bit")
    adapter = None
    if not is_whole:
        rank = fields.whole("lora_rank", 8) or 8
        adapter = fine_tuning.adapter(
            fields,
            four_bits=bits == 4,
            eight_bits="quantization_bit" if bits == 8 else "",
            double=fields.flag("double_quantization", default=True),
            rank="lora_rank",
            saved="additional_target",
            defaults=(8, 2 * rank, 0.0),
            targets="lora_target",
        )
    neat = fields.flag("neat_packing")
    variant = "block_diagonal" if neat else ""
    packing = fine_tuning.packed(fields, neat or fields.flag("packing"), variant, "packing", True)
    checkpoints = not fields.flag("disable_gradient_checkpointing")
    full = str(Checkpointing.FULL if checkpoints else Checkpointing.NONE)
    return fine_tuning.of_trainer(
        fields,
        format_name=NAME,
        knobs={"activation_checkpointing": full},
        model=fields.text("model_name_or_path"),
        length=fields.whole("cutoff_len", 2048),
        adapter=adapter,
        packing=packing,
        mixes=not fields.flag("pure_bf16"),
        reads=_READ,
    )


def tuned(question: Question, settings: Settings, values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that say the settings, in a file that has ``values``."""
    # layers are checkpointed where no field says otherwise; figures are of torch's own sharding
    arguments = {"gradient_checkpointing": True, **values, "deepspeed": None}
    engine.check_sizes(values.get("deepspeed"), settings.all_values(), "the answer says")
    found = trainer.tuned(question, settings, arguments)
    for name in ("gradient_checkpointing", "activation_checkpointing"):
        found.pop(name, None)
        found.pop(f"{name}_kwargs", None)
    none = settings.activation_checkpointing is Checkpointing.NONE
    return {**found, "disable_gradient_checkpointing": none or None}
