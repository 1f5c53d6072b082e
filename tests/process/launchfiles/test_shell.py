"""Scripts for shells: started by a shell, with real processes."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.process.launchfiles.launching import all_json, launched, save_tiny_llama
from tests.unit.launchfiles.cases import ABOUT, Case, trainer
from tests.unit.launchfiles.readers import variables_in
from tuner.core.adapter import Adapter, AdapterMethod
from tuner.core.packing import Packing, PackingVariant
from tuner.core.workload import Precision, ReduceDtype
from tuner.launchfiles import FORMATS, export

RANK = """\
import json, os, sys
names = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS")
told = {name: value for name, value in os.environ.items() if name.startswith("TUNED_")}
place = {name: os.environ[name] for name in names}
sys.stdout.write(json.dumps({**place, **told, "arguments": sys.argv[1:]}) + "\\n")
"""
DDP = "sharding=ddp,gradient_accumulation_steps=4"


def _case(cluster, settings, **more):
    given = {"model": "stories15m", "sequence_length": 128, **more}
    return Case(cluster=cluster, settings=settings, **given)


def _text(name, cluster, settings=DDP, **more):
    return export(name, *_case(cluster, settings, **more).parts(), ABOUT)


def test_torchrun_starts_the_ranks_with_the_settings(tmp_path):
    text = _text("torchrun", "cpu:2")
    (tmp_path / "torchrun.sh").write_text(text, encoding="utf-8")
    (tmp_path / "rank.py").write_text(RANK, encoding="utf-8")
    out = launched(["sh", "torchrun.sh", "rank.py", "a b", "$c"], cwd=tmp_path)
    ranks = all_json(out)
    assert sorted(found["RANK"] for found in ranks) == ["0", "1"]
    for found in ranks:
        assert found["WORLD_SIZE"] == found["LOCAL_WORLD_SIZE"] == "2"
        assert found["arguments"] == ["a b", "$c"]
        values = variables_in(text)
        assert {name: found[name] for name in values} == values
        assert found["TUNED_GRADIENT_ACCUMULATION_STEPS"] == "4"


def test_what_is_missing_is_said(tmp_path):
    fp32 = {"workload": {"precision": Precision.FP32}}
    for name, told in (("torchrun", "sh torchrun.sh"), ("trainer-flags", "sh trainer.sh"),
                       ("sbatch", "sbatch THIS_FILE")):  # fmt: skip
        text = _text(name, "cpu:2", **fp32)
        path = tmp_path / FORMATS[name].file_name
        path.write_text(text, encoding="utf-8")
        done = subprocess.run(["sh", path.name], text=True, capture_output=True, cwd=tmp_path)
        assert done.returncode != 0
        assert f"usage: {told} SCRIPT.py" in done.stderr
    path = tmp_path / "torchrun.sh"
    path.write_text(_text("torchrun", "2x2xcpu"), encoding="utf-8")
    own = {"PATH": "/usr/bin:/bin", "HOST": "own"}
    done = subprocess.run(["sh", path, "rank.py"], text=True, capture_output=True, env=own)
    assert done.returncode != 0
    assert "MASTER_ADDR: set it to the address" in done.stderr


TRAINING = """\
import importlib.util, json, os, sys
from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainerCallback
from transformers import TrainingArguments
import torch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

WHOLE = "model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)"
folder, *rest = sys.argv[1:]
parser = HfArgumentParser(TrainingArguments)
if rest[0].endswith(".json"):
    (arguments,) = parser.parse_json_file(rest[0])
else:
    (arguments,) = parser.parse_args_into_dataclasses(rest)
spec = importlib.util.spec_from_file_location("launched", folder + "/launched.py")
launched = importlib.util.module_from_spec(spec)
spec.loader.exec_module(launched)
torch.manual_seed(0)
tokens = torch.randint(0, 64, (16, 8))
dataset = [{"input_ids": row, "labels": row} for row in tokens]
own = {"MODEL": folder + "/model", "torch": torch, "AutoModelForCausalLM": AutoModelForCausalLM}
exec(os.environ.get("LOAD", WHOLE), own)
collator = eval(os.environ.get("COLLATOR", "None"), own)
if collator:
    dataset = [{"documents": [row[:5].tolist(), row[5:].tolist()]} for row in tokens]
arguments.num_train_epochs, arguments.report_to, arguments.save_strategy = 1, [], "no"
arguments.disable_tqdm, arguments.learning_rate = True, 1e-3
model = own["model"]
trainer = Trainer(model=model, args=arguments, train_dataset=dataset, data_collator=collator)
before = launched.values_of(model)
class Begun(TrainerCallback):
    def on_train_begin(self, *given, **named):
        eval(os.environ.get("ON_TRAIN_BEGIN", "None"))
trainer.add_callback(Begun())
with launched.Collectives() as collectives:
    trainer.train()
if arguments.process_index == 0:
    seen = {"steps": trainer.state.global_step, "collectives": dict(collectives.counts)}
    seen["moved"] = launched.moved(model, before)
    seen["checkpointed"] = sum(map(launched._is_checkpointed, model.modules()))
    sys.stdout.write(json.dumps(seen) + "\\n")
torch.distributed.destroy_process_group()
sys.stdout.flush()
os._exit(0)  # threads of libraries that still run can abort an orderly end
"""


def _trained(folder, name, case, **environment):
    """What was seen of 16 sequences that a file's Trainer trained on, on two processes."""
    (folder / "launched.py").unlink(missing_ok=True)
    (folder / "launched.py").symlink_to(Path(__file__).parent / "launched.py")
    (folder / "train.py").write_text(TRAINING, encoding="utf-8")
    text = export(name, *case.parts(), ABOUT)
    if name == "trainer":
        values = {**json.loads(text), "output_dir": str(folder / "out")}
        (folder / "args.json").write_text(json.dumps(values), encoding="utf-8")
        command = ["torchrun", "--standalone", "--nproc-per-node", "2", "train.py"]
        command += [str(folder), "args.json"]
    else:
        (folder / "trainer.sh").write_text(text, encoding="utf-8")
        command = ["sh", "trainer.sh", "train.py", str(folder)]
    return all_json(launched(command, cwd=folder, **environment))[-1]


@pytest.mark.long
def test_the_trainer_does_what_its_arguments_say(tmp_path):
    """16 sequences in 2 optimizer steps of 4 micro-batches on 2 processes; one DDP bucket."""
    save_tiny_llama(tmp_path / "model", tied=True)
    for name, sync, reductions, precision, reduced in (
        ("trainer", "true", 8, Precision.FP32, "float32"),
        ("trainer-flags", "false", 2, Precision.FP32, "float32"),
        ("trainer", "true", 8, Precision.BF16_MIXED, "bfloat16"),
    ):
        more = {"framework": trainer(), "workload": {"precision": precision}}
        case = _case("cpu:2", f"{DDP},sync_each_batch={sync}", **more)
        hook = re.search(r" calls (trainer\..*\)), with", " ".join(_beside(name, case)))
        own = {"ON_TRAIN_BEGIN": hook[1]} if hook else {}
        found = _trained(tmp_path, name, case, **own)
        assert found["steps"] == 2
        assert found["collectives"][f"allreduce torch.{reduced}"] == reductions


@pytest.mark.parametrize(
    "method", [AdapterMethod.QLORA, pytest.param(AdapterMethod.LORA, marks=pytest.mark.long)]
)
def test_the_trainer_trains_an_adapter_on_packed_rows(tmp_path, method):
    """With what is told beside the file: adapters move and nothing else, and their gradients alone
    are reduced, of each micro-batch."""
    save_tiny_llama(tmp_path / "model")
    workload = {
        "precision": Precision.BF16_MIXED,
        "reduce_dtype": ReduceDtype.FP32,
        "adapter": Adapter(rank=2, method=method, modules_to_save=("lm_head",)),
        "packing": Packing(variant=PackingVariant.POSITION_IDS, documents=((5, 1), (3, 1))),
    }
    settings = f"{DDP},sync_each_batch=true,activation_checkpointing=every_2"
    more = {"framework": trainer(), "workload": workload, "sequence_length": 8}
    case = _case("cpu:2", settings, model=str(tmp_path / "model" / "config.json"), **more)
    said = _beside("trainer", case)
    (load,) = [text.partition("\n")[2] for text in said if "get_peft_model" in text]
    (collator,) = re.findall(r"data_collator=(lambda.*?)\. Its rows have documents", " ".join(said))
    found = _trained(tmp_path, "trainer", case, LOAD=load, COLLATOR=collator)
    adapters = 2 * 2 * 7 + 1  # two matrices beside each linear of two layers, and the head's copy
    whole = 2 * 9 + 3
    assert found["steps"] == 2
    assert found["moved"] == {"trained": [adapters] * 2, "frozen": [0, whole]}
    each = {"float32": "adapters", "bfloat16": "the head, as peft leaves its copy"}
    assert found["collectives"] == {f"allreduce torch.{name}": 2 * 4 for name in each}
    assert found["checkpointed"] == 1


def _beside(name, case):
    return FORMATS[name].beside(*case.parts())
