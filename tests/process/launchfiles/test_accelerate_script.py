"""The code in files for ``accelerate launch``: checked, executed, and launched."""

import itertools
import re
import sys
import warnings
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch

from tests.process.launchfiles.launching import all_json, launched, save_tiny_llama
from tests.unit.launchfiles.cases import ABOUT, CASES, STATED, Case
from tests.unit.launchfiles.cases import trainer as by_trainer
from tuner.core.adapter import Adapter, AdapterMethod
from tuner.core.framework import Framework, FrameworkName
from tuner.core.packing import Packing, PackingVariant
from tuner.core.workload import Optimizer, Precision, ReduceDtype
from tuner.launchfiles import FORMATS, export, trainer
from tuner.launchfiles.accelerate import script
from tuner.launchfiles.torch_module import module
from workers.probe.optimizers import LEARNING_RATE, make_optimizer
from workers.probe.quantized import quantized_linears

QLORA = Adapter(rank=2, method=AdapterMethod.QLORA)
ACCELERATE = FrameworkName.ACCELERATE
SCRIPT = Path(__file__).parent / "launched.py"


def test_number_formats_are_the_probes():
    for formats in itertools.product(Precision, ReduceDtype, ("ddp", "full_shard")):
        check_formats(*formats)


def check_formats(precision, reduce_dtype, sharding):
    workload = {"precision": precision, "reduce_dtype": reduce_dtype}
    code = script(*Case(settings=f"sharding={sharding}", workload=workload).parts())
    dtype = {"bf16": "torch.bfloat16", "fp32": "torch.float32"}
    own = "bf16" if precision is Precision.BF16 else "fp32"
    if reduce_dtype is ReduceDtype.FRAMEWORK:  # no hook, and accelerate's own policy
        narrow = precision is Precision.BF16_MIXED and sharding != "ddp"
        reduce_dtype = ReduceDtype.BF16 if narrow else ReduceDtype(own)
    assert f"from_pretrained(\n    MODEL, dtype={dtype[own]}," in code
    hook = f"bucket.buffer().to({dtype[reduce_dtype]})"
    policy = f"reduce_dtype={dtype[reduce_dtype]}"
    mixed = precision is Precision.BF16_MIXED
    assert (hook in code) is (sharding == "ddp" and reduce_dtype != own)
    assert (policy in code) is (sharding != "ddp" and (mixed or reduce_dtype != own))
    assert ("param_dtype=torch.bfloat16" in code) is (sharding != "ddp" and mixed)


def test_the_adapter_is_the_probe_s(tmp_path):
    """Code that is written, also for the Trainer, gives a model on a device what the probe program
    gives one on none."""
    from workers.probe.model import add_adapter, build_on_meta

    path = save_tiny_llama(tmp_path / "model", tied=False)
    lora = Adapter(rank=2, alpha=12.0, dropout=0.3, target_modules=("q_proj", "down_proj"))
    qlora = replace(lora, method=AdapterMethod.QLORA)
    for precision, adapter in product((Precision.BF16, Precision.BF16_MIXED), (lora, qlora)):
        workload = {"precision": precision, "adapter": adapter}
        code = script(*Case(settings="sharding=full_shard", workload=workload).parts())
        assert "dtype=torch.bfloat16, attn" in code
        imports = [line for line in code.splitlines() if re.match("from (peft|transf)", line)]
        load = code[code.index("model = AutoModel") : code.index("\noptimizer = ")]
        told = FORMATS["trainer"].beside(*Case(settings="sharding=ddp", workload=workload).parts())
        (beside,) = [one.partition("\n")[2] for one in told if "get_peft_model" in one]
        known = {"MODEL": path, "torch": torch}
        exec(beside, known)
        of_trainer = described(known["model"])
        exec("\n".join([*imports, load]), known)
        model = known["model"]
        assert of_trainer == described(model)
        config = model.config.to_dict() | {"model_type": "llama"}
        bare = build_on_meta({k: config[k] for k in TINY_FIELDS}, model.dtype)
        mixed = precision is Precision.BF16_MIXED
        probed = add_adapter(bare, adapter.as_dict(), trains_fp32=mixed, checkpointed=False)
        assert scales_of(known["model"]) == (2 * 7 if adapter is qlora else 0)
        assert described(known["model"]) == described(probed)
        assert fields_of(known["model"]) == fields_of(probed)
        assert fields_of(probed)["lora_alpha"] == adapter.alpha
        assert fields_of(probed)["lora_dropout"] == adapter.dropout


@pytest.mark.parametrize("variant", PackingVariant)
def test_packed_batches_are_the_probe_s(variant):
    """Code that is written, also for the Trainer, makes of documents what the probe runs."""
    import torch
    from transformers import DataCollatorWithFlattening

    from workers.probe.batches import batch_of

    packing = Packing(variant=variant, documents=((3, 1), (5, 1)))
    case = Case(settings="sharding=ddp", sequence_length=8, workload={"packing": packing})
    code = script(*case.parts())
    told = code[code.index("def collate") : code.index("accelerator = Accelerator(")]
    known = {"torch": torch, "DataCollatorWithFlattening": DataCollatorWithFlattening}
    exec(told, known)
    lengths = packing.row(8)
    tokens = torch.arange(1, 17).view(2, 8)
    if variant is PackingVariant.PADDED:
        tokens[:, lengths[0] :] = 0
        rows = [{"input_ids": row[: lengths[0]].tolist()} for row in tokens]
    else:
        rows = [{"documents": [part.tolist() for part in row.split(lengths)]} for row in tokens]
    wanted = batch_of(tokens, {"variant": variant, "documents": lengths}, torch.bfloat16)
    made = [known["collate"](rows)]
    if variant is PackingVariant.BLOCK_DIAGONAL:  # a mask comes where the batch is, in the loop
        use = next(line for line in code.splitlines() if "block_mask(batch" in line)
        exec(use.strip(), known | {"batch": made[0]})
    else:
        said = " ".join(trainer.FORMAT.beside(*replace(case, framework=by_trainer()).parts()))
        told = said[said.index("data_collator=lambda") :].partition(". Its rows have ")[0]
        made.append(eval(told.removeprefix("data_collator="), known)(rows))
    for found in made:
        assert found.keys() == wanted.keys()
        for name, tensor in wanted.items():
            assert found[name].dtype == tensor.dtype
            assert torch.equal(found[name], tensor), name


TINY_FIELDS = (
    "model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "vocab_size", "tie_word_embeddings",
)  # fmt: skip


def scales_of(model):
    """Layers whose packed weights have scales as the probe's."""
    kinds = {"quant_type": "nf4", "blocksize": 64, "nested": True, "dtype": torch.bfloat16}
    layers = quantized_linears(model).values()
    for layer in layers:
        assert {name: getattr(layer.quant_state, name) for name in kinds} == kinds
        assert layer.compute_dtype is torch.bfloat16
    return len(layers)


def described(model):
    return [(name, p.shape, p.dtype, p.requires_grad) for name, p in model.named_parameters()]


def fields_of(model):
    """All of peft's settings but the name of the model's folder."""
    return {**model.peft_config["default"].to_dict(), "base_model_name_or_path": None}


def test_optimizers_step_as_the_probe_s(tmp_path):
    """Those that exported code makes, with accelerate and with torch alone."""
    from accelerate.state import AcceleratorState, GradientState
    from transformers import AutoModelForCausalLM

    path = save_tiny_llama(tmp_path / "model", tied=False, hidden_size=64)  # 4096 elements and more
    tokens = torch.randint(0, 64, (4, 8), generator=torch.Generator().manual_seed(0))
    batch = {"input_ids": tokens, "labels": tokens}
    dataset = [{name: row[i] for name, row in batch.items()} for i in range(4)]
    for optimizer in set(Optimizer) - {Optimizer.ADAMW_8BIT}:  # which compiles its step
        made = [AutoModelForCausalLM.from_pretrained(path).train() for _ in range(2)]
        before = [p.clone() for p in made[0].parameters()]
        for model in made:
            model.config.use_cache = False
        case = Case(
            model="stories15m", cluster="cpu:1", sequence_length=8,
            settings="sharding=ddp,micro_batch_size=4",
            workload={"optimizer": optimizer, "precision": Precision.FP32},
        )  # fmt: skip
        known = {
            "MODEL": path, "DATASET": dataset, "LEARNING_RATE": LEARNING_RATE,
        }  # fmt: skip
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Paged optimizers are not supported on CPU")
            try:
                exec(script(*case.parts()), known)
            finally:
                AcceleratorState._reset_state(reset_partial_state=True)
                GradientState._reset_state()
            own = {}
            exec(module(*case.parts()), own)
            stepped = own["make_optimizer"](made[0], LEARNING_RATE)
            own["train_step"](made[0], stepped, [batch])
        probed = make_optimizer(str(optimizer), made[1])
        made[1](**batch).loss.backward()
        probed.step()
        want = list(made[1].parameters())
        assert all(not torch.equal(a, b) for a, b in zip(want, before, strict=True)), optimizer
        for model in (known["model"], made[0]):
            for got, wanted in zip(model.parameters(), want, strict=True):
                assert torch.equal(got, wanted), optimizer


def test_sharded_code_stops_on_a_cpu(launched_environment):
    from accelerate.state import AcceleratorState, GradientState

    launched_environment("full_shard_cpu")
    try:
        with pytest.raises(AssertionError, match="GPUs"):
            exec(script(*CASES["full_shard_cpu"].parts()), {})
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()


# ---- launched --------------------------------------------------------------------------------


@pytest.fixture
def tiny_model(tmp_path):
    """A checkpoint whose embedding is lm_head's too."""
    return save_tiny_llama(tmp_path / "model", tied=True)


@pytest.mark.slow
@pytest.mark.usefixtures("preloading")
def test_two_launched_processes_run_ddp_as_the_file_says(tmp_path, tiny_model):
    """16 sequences in 2 optimizer steps of 4 micro-batches on 2 processes; one DDP bucket."""
    other = Case(
        model="stories15m",
        cluster="cpu:2",
        sequence_length=8,
        settings="sharding=ddp,gradient_accumulation_steps=4,sync_each_batch=true"
        ",activation_checkpointing=full",
        workload={"precision": Precision.FP32, "reduce_dtype": ReduceDtype.BF16},
    )
    files = []
    for name, one in (("deferred", CASES["ddp_cpu"]), ("each", other)):
        files.append(tmp_path / f"{name}.yaml")
        files[-1].write_text(export("accelerate", *one.parts(), ABOUT), encoding="utf-8")
    deferred, each = _launch(files[0], tiny_model, *files)
    same = {
        "processes": 2,
        "distributed_type": "MULTI_CPU",
        "device": "cpu",
        "mixed_precision": "no",
        "gradient_accumulation_steps": 4,
        "weights": "torch.float32",
        "optimizer": "AdamW",
        "optimizer_steps": 2,
    }
    assert {key: deferred[key] for key in same} == {key: each[key] for key in same} == same
    assert (deferred["sync_each_batch"], each["sync_each_batch"]) == (False, True)
    assert (deferred["checkpointed"], each["checkpointed"]) == (0, 2)
    assert deferred["collectives"] == {"allreduce torch.float32": 2}
    assert each["collectives"] == {"allreduce torch.bfloat16": 8}
    assert each["loss"] == pytest.approx(deferred["loss"], rel=1e-3)


@pytest.mark.usefixtures("preloading")
def test_two_launched_processes_shard_as_the_file_says(tmp_path, tiny_model):
    """16 sequences in 2 optimizer steps of 2 micro-batches; 2 layers and the rest are sharded.

    FSDP's option keeps what the script's own checkpointing keeps, which is the probe's, and which
    the file has the script do where the option does something else.
    """
    own, before = CASES["full_shard_cpu"], {**STATED, "accelerate": "1.14.0"}
    cases = {
        "own": own,
        "by_script": replace(own, framework=Framework(name=ACCELERATE, versions=before)),
        "nothing": replace(own, settings=own.settings.replace("pointing=full", "pointing=none")),
        "adapter": replace(own, workload={**own.workload, "adapter": Adapter(rank=2)}),
        "quantized": replace(own, workload={**own.workload, "adapter": QLORA}),
        "frozen": replace(own, workload={**own.workload, "frozen": ("layers.0-0",)}),
    }
    files = [tmp_path / f"{name}.yaml" for name in cases]
    for file, case in zip(files, cases.values(), strict=True):
        file.write_text(export("accelerate", *case.parts(), ABOUT))
    found, by_script, nothing, adapter, quantized, frozen = _launch(
        files[0], tiny_model, "--fsdp-on-cpu", *files
    )
    assert ("fsdp_activation_checkpointing: true" in files[0].read_text()) is True
    assert ("fsdp_activation_checkpointing: true" in files[1].read_text()) is False
    assert by_script["checkpointed"] == 2
    assert by_script["loss"] == found["loss"]
    one = 2 * 8 * 32 * 2  # bytes of a tensor of a micro-batch's tokens and hidden size
    assert abs(found["held_bytes"] - by_script["held_bytes"]) < one
    assert nothing["held_bytes"] > found["held_bytes"] + 10 * one
    expected = {
        "processes": 2,
        "distributed_type": "FSDP",
        "mixed_precision": "bf16",
        "gradient_accumulation_steps": 2,
        "sync_each_batch": False,
        "weights": "torch.float32",
        "checkpointed": 2,
        "optimizer_steps": 2,
    }
    assert {key: found[key] for key in expected} == expected
    assert found["collectives"]["reduce_scatter_base torch.float32"] == 2 * 3
    assert found["collectives"]["allgather_base torch.bfloat16"] == 4 * (3 + 2)
    assert found["loss"] == pytest.approx(4.149, abs=0.01)
    linears = 2 * 7  # of the layers, each with two matrices beside it
    assert found["moved"] == {"trained": [2 * 9 + 2] * 2, "frozen": [0, 0]}
    assert adapter["moved"] == {"trained": [2 * linears] * 2, "frozen": [0, 2 * 9 + 2]}
    same = {"processes", "distributed_type", "mixed_precision", "checkpointed", "optimizer_steps"}
    assert {key: adapter[key] for key in same} == {key: found[key] for key in same}
    # adapters alone, and no unit of the embedding, the last norm and the head
    assert adapter["collectives"]["reduce_scatter_base torch.float32"] == 2 * 2
    assert quantized["moved"] == adapter["moved"]
    assert quantized["collectives"] == adapter["collectives"]
    assert quantized["loss"] == pytest.approx(adapter["loss"], rel=0.01)
    assert quantized["loss"] != adapter["loss"]
    assert frozen["moved"] == {"trained": [9 + 2] * 2, "frozen": [0, 9]}
    assert frozen["collectives"]["reduce_scatter_base torch.float32"] == 2 * 2


def _launch(config, model, *arguments):
    """Lines of JSON that the launched script printed."""
    command = [sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch"]
    command += ["--config_file", str(config), "--main_process_port", "0"]
    return all_json(launched([*command, str(SCRIPT), str(model), *map(str, arguments)]))
