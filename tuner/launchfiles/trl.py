"""The arguments of TRL's ``SFTTrainer``, in YAML or as a script's command line.

Fields are those of TRL 1.14: ``SFTConfig`` in trl/trainer/sft_config.py, whose defaults differ from
``TrainingArguments`` in that layers are checkpointed and numbers are bf16, and ``ModelConfig`` in
trl/trainer/model_config.py.
"""

from collections.abc import Mapping
from typing import Any

from tuner.core.configuration import Checkpointing, Settings
from tuner.core.study import Question
from tuner.launchfiles import deepspeed as engine
from tuner.launchfiles import fine_tuning, trainer
from tuner.launchfiles.fields import Fields, Found

NAME = "trl"
MARKS = frozenset({
    "max_length", "use_peft", "packing", "padding_free", "assistant_only_loss",
    "completion_only_loss",
})  # fmt: skip

# Arguments that only other trainers of TRL's have.
_OTHERS = ("beta", "num_generations", "max_prompt_length", "reward_model_path", "loss_type")
# Looked at beside the Trainer's.
_READ = frozenset({
    *MARKS, *_OTHERS, "load_in_4bit", "load_in_8bit", "use_bnb_nested_quant", "lora_r",
    "lora_alpha", "lora_dropout", "lora_target_modules", "lora_modules_to_save", "dtype",
    "packing_strategy", "model_name_or_path", "torch_dtype", "gradient_checkpointing_kwargs",
})  # fmt: skip


def read(values: Mapping[str, Any]) -> Found:
    """Reads the file, or raises ``UsageError`` for a field."""
    fields = Fields(values)
    fine_tuning.pass_over_known(fields)
    for name in _OTHERS:
        if name in fields and fields.values[name] not in ("nll", "dft", "chunked_nll"):
            fields.pass_over(name, fine_tuning.OTHER_STEP, rules_out=True)
    adapter = None
    four, eight = fields.flag("load_in_4bit"), fields.flag("load_in_8bit")
    if fields.flag("use_peft"):
        adapter = fine_tuning.adapter(
            fields,
            four_bits=four,
            eight_bits="load_in_8bit" if eight else "",
            double=fields.flag("use_bnb_nested_quant"),
            rank="lora_r",
            saved="lora_modules_to_save",
            defaults=(16, 32, 0.05),
            targets="lora_target_modules",
        )
    keeps_apart = str(fields.values.get("packing_strategy") or "bfd").startswith("bfd")
    variant = "varlen" if keeps_apart else ""
    packing = fine_tuning.packed(
        fields, fields.flag("packing"), variant, "packing_strategy", "wrapped"
    )
    is_on = fields.flag("gradient_checkpointing", default=True)
    knobs = (
        {}
        if "gradient_checkpointing_kwargs" in fields
        else {"activation_checkpointing": str(Checkpointing.FULL if is_on else Checkpointing.NONE)}
    )
    return fine_tuning.of_trainer(
        fields,
        format_name=NAME,
        knobs=knobs,
        model=fields.text("model_name_or_path"),
        length=fields.whole("max_length", 1024),
        adapter=adapter,
        packing=packing,
        mixes=str(fields.values.get("dtype", fields.values.get("torch_dtype"))) != "bfloat16",
        bf16=not fields.flag("fp16"),
        reads=_READ,
    )


def tuned(question: Question, settings: Settings, values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that say the settings, in a file that has ``values``."""
    # layers are checkpointed where no field says otherwise; figures are of torch's own sharding
    arguments = {"gradient_checkpointing": True, **values, "deepspeed": None}
    engine.check_sizes(values.get("deepspeed"), settings.all_values(), "the answer says")
    found = trainer.tuned(question, settings, arguments)
    renamed = "activation_checkpointing"  # in newer releases of transformers, not of TRL
    return {name.replace(renamed, "gradient_checkpointing"): one for name, one in found.items()}
