"""Scripts for shells: started by a shell, with real processes."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.launchfiles.conftest import EXAMPLES, a_script
from tests.unit.launchfiles.launching import all_json, last_json, launched, save_tiny_llama
from tests.unit.launchfiles.readers import header_of, variables_in
from tuner.core.framework import Framework, FrameworkName
from tuner.core.workload import Precision
from tuner.launchfiles import About, export
from tuner.script import Launch

RANK = """\
import json, os, sys
names = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS")
told = {name: value for name, value in os.environ.items() if name.startswith("TUNED_")}
place = {name: os.environ[name] for name in names}
sys.stdout.write(json.dumps({**place, **told, "arguments": sys.argv[1:]}) + "\\n")
"""
VERSIONS = {"accelerate": "1.15.0", "torch": "2.13.0", "transformers": "5.23.0"}
DDP = "sharding=ddp,gradient_accumulation_steps=4"


def _parts(case: Any, cluster: str, settings: str = DDP, **more: Any) -> Any:
    given = {"model": "stories15m", "sequence_length": 128, **more}
    return case(cluster=cluster, settings=settings, **given).parts()


def test_torchrun_starts_the_ranks_with_the_settings(
    case: Any, about: About, tmp_path: Path
) -> None:
    question, settings = _parts(case, "cpu:2")
    text = export("torchrun", question, settings, about)
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


@pytest.mark.parametrize(
    ("name", "cluster", "told"),
    [
        ("torchrun", "cpu:2", "usage: sh torchrun.sh SCRIPT.py"),
        ("trainer-flags", "cpu:2", "usage: sh trainer.sh SCRIPT.py"),
        ("sbatch", "cpu:2", "usage: sbatch tuned.sbatch SCRIPT.py"),
    ],
)
def test_what_is_missing_is_said(
    case: Any, about: About, name: str, cluster: str, told: str
) -> None:
    text = export(name, *_parts(case, cluster, workload={"precision": Precision.FP32}), about)
    done = subprocess.run(["sh"], input=text, text=True, capture_output=True)
    assert done.returncode != 0
    assert told in done.stderr


def test_several_nodes_must_be_told_where_they_meet(
    case: Any, about: About, tmp_path: Path
) -> None:
    path = tmp_path / "torchrun.sh"
    path.write_text(export("torchrun", *_parts(case, "2x2xcpu"), about), encoding="utf-8")
    command = ["sh", str(path), "rank.py"]
    done = subprocess.run(
        command, text=True, capture_output=True, env={"PATH": "/usr/bin:/bin", "HOST": "own"}
    )
    assert done.returncode != 0
    assert "MASTER_ADDR: set it to the address" in done.stderr


def test_slurm_reads_nodes_and_devices_before_the_first_command(about: About) -> None:
    text = export("sbatch", *EXAMPLES["sbatch"].parts(), about)
    lines = text.splitlines()
    first = next(n for n, line in enumerate(lines) if line and not line.startswith("#"))
    options = [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH ")]
    assert options == [
        "--job-name=tuned-st-0123456789ab",
        "--nodes=2",
        "--ntasks-per-node=1",
        "--gpus-per-node=8",
    ]
    assert max(n for n, line in enumerate(lines) if line.startswith("#SBATCH")) < first
    assert lines[-1].startswith("exec srun ")
    assert '--rdzv-endpoint "$MASTER_ADDR":29500 "$@"' in lines[-1]


@pytest.mark.parametrize("name", ["accelerate", "torchrun", "sbatch", "kubernetes"])
def test_a_users_own_script_is_said_to_take_the_settings_itself(
    case: Any, about: About, name: str
) -> None:
    question, settings = _parts(case, "2xl4")
    own = replace(question, script=a_script("{micro_batch_size}"))
    if name == "accelerate":
        framework = Framework(name=FrameworkName.ACCELERATE, versions=VERSIONS)
        script = a_script("{micro_batch_size}", launch=Launch.ACCELERATE)
        own = replace(question, script=script, framework=framework)
    text = export(name, own, settings, about)
    assert "only with the arguments by which it takes them" in header_of(text)
    assert "Your own script train.py on " in header_of(text)
    for unknown in ("adamw", "AdamW", "TUNED_OPTIMIZER", "TUNED_PRECISION", "TUNED_REDUCE_DTYPE"):
        assert unknown not in text


def test_nanotron_is_given_the_variable_that_it_needs(about: About) -> None:
    for name in ("torchrun", "sbatch"):
        text = export(name, *EXAMPLES["nanotron"].parts(), about)
        assert variables_in(text)["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
        assert "run_train.py" in text


TRAINING = """\
import importlib.util, json, os, sys
from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments
import torch

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
model = AutoModelForCausalLM.from_pretrained(folder + "/model", dtype=torch.float32)
arguments.num_train_epochs, arguments.report_to, arguments.save_strategy = 1, [], "no"
arguments.disable_tqdm = True
trainer = Trainer(model=model, args=arguments, train_dataset=dataset)
with launched.Collectives() as collectives:
    trainer.train()
if arguments.process_index == 0:
    seen = {"steps": trainer.state.global_step, "collectives": dict(collectives.counts)}
    sys.stdout.write(json.dumps(seen) + "\\n")
torch.distributed.destroy_process_group()
sys.stdout.flush()
os._exit(0)  # threads of libraries that still run can abort an orderly end
"""


@pytest.mark.slow
def test_the_trainer_does_what_its_arguments_say(case: Any, about: About, tmp_path: Path) -> None:
    """16 sequences in 2 optimizer steps of 4 micro-batches on 2 processes; one DDP bucket."""
    versions = {"transformers": "5.23.0", "accelerate": "1.15.0", "torch": "2.13.0"}
    trainer = Framework(name=FrameworkName.TRAINER, versions=versions)
    save_tiny_llama(tmp_path / "model", tied=True)
    (tmp_path / "launched.py").symlink_to(
        Path(__file__).parents[2] / "process" / "launchfiles" / "launched.py"
    )
    (tmp_path / "train.py").write_text(TRAINING, encoding="utf-8")
    for name, sync, reductions in (("trainer", "true", 8), ("trainer-flags", "false", 2)):
        parts = _parts(
            case,
            "cpu:2",
            f"{DDP},sync_each_batch={sync}",
            framework=trainer,
            workload={"precision": Precision.FP32},
        )
        text = export(name, *parts, about)
        command = ["torchrun", "--standalone", "--nproc-per-node", "2", "train.py", str(tmp_path)]
        if name == "trainer":
            values = {**json.loads(text), "output_dir": str(tmp_path / "out")}
            (tmp_path / "args.json").write_text(json.dumps(values), encoding="utf-8")
            found = last_json(launched([*command, "args.json"], cwd=tmp_path))
        else:
            (tmp_path / "trainer.sh").write_text(text, encoding="utf-8")
            found = last_json(
                launched(["sh", "trainer.sh", "train.py", str(tmp_path)], cwd=tmp_path)
            )
        assert found["steps"] == 2
        assert found["collectives"]["allreduce torch.float32"] == reductions
