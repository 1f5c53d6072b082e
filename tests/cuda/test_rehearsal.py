"""Scripts that know nothing of a rehearsal, run as one rank of many without a GPU."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.docs.pages import ROOT, blocks
from tuner.core.cluster import parse_cluster
from tuner.core.configuration import parse_settings
from tuner.core.framework import framework
from tuner.core.workload import Precision, Workload
from tuner.cost.prediction import predict
from tuner.model import published_model

PLAIN = """
import os, sys
from pathlib import Path
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
width = int(sys.argv[1])
if "RANK" in os.environ:
    dist.init_process_group()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.barrier(dist.new_group(backend="gloo"))
with torch.device("meta"):
    model = torch.nn.Sequential(*[torch.nn.Linear(width, width, bias=False) for _ in range(4)])
if dist.is_initialized():
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
model.to_empty(device="cuda")
optimizer = torch.optim.AdamW(model.parameters())
Path("made").mkdir()
Path("made/log.txt").write_text("a")
for _ in range(9):
    model(torch.ones(8, width, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.save(model.state_dict(), "checkpoint.pt")
"""


def test_ranks_of_two_nodes_hold_their_shards(rehearse, tmp_path):
    options = ["--cluster", "2x8xh100-80gb", "--ranks", "0,last", "--snapshot", str(tmp_path / "s")]
    code, found = rehearse(PLAIN, options, ["torchrun", "--nproc-per-node", "8"], "4096")
    assert (code, found["provenance"], found["fits"]) == (0, "rehearsed", True), found
    first, last = found["ranks"]
    assert (first["rank"], last["rank"], last["world_size"]) == (0, 15, 16)
    shard = 4 * 4096 * 4096 * 4 // 16
    assert [len(rank["steps"]) for rank in found["ranks"]] == [3, 3]
    assert first["steps"][2]["allocated_bytes"] == last["steps"][2]["allocated_bytes"]
    assert first["steps"][2]["by_phase"]["optimizer"] >= 4 * shard  # weights, gradients, moments
    assert {one["op"] for one in first["collectives"]} >= {"all_gather", "reduce_scatter"}
    assert all(one["ranks"] == 16 for one in first["collectives"])
    lines = [line["at"] for moment in first["moments"] for line in moment["lines"]]
    assert any(line.startswith("train.py:18 model.to_empty") for line in lines), lines
    assert "torch.save to checkpoint.pt" in first["not_run"]
    assert not (tmp_path / "made").exists()
    assert not (tmp_path / "checkpoint.pt").exists()
    assert (tmp_path / "s" / "rank-00015.pickle").stat().st_size > 1000


def test_memory_runs_out_as_on_the_device_with_the_scripts_line(rehearse):
    code, found = rehearse(PLAIN, ["--cluster", "rtx-4090"], ["python"], "60000")
    (rank,) = found["ranks"]
    assert (code, found["fits"], rank["outcome"]) == (3, False, "oom"), rank
    assert "CUDA out of memory. Tried to allocate 13.41 GiB" in rank["detail"]
    assert rank["at"] == 'train.py:18 model.to_empty(device="cuda")'
    assert rank["held"][0]["at"] == rank["at"]


@pytest.mark.parametrize(
    ("launch", "options", "said"),
    [
        (["torchrun", "--nproc-per-node", "4"], ["--cluster", "8xh100-80gb"], "has 4 ranks a node"),
        (["mpirun"], [], "cannot rehearse mpirun"),
    ],
)
def test_a_command_that_cannot_be_rehearsed_is_refused(rehearse, launch, options, said):
    code, found = rehearse(PLAIN, options, launch, "64")
    assert code == 1
    assert said in found["ranks"][0]["detail"]


def test_a_script_that_leaves_with_a_code_has_failed(rehearse):
    code, found = rehearse(PLAIN + "    sys.exit('no data')\n", [], ["python"], "64")
    (rank,) = found["ranks"]
    assert (code, rank["outcome"], len(rank["steps"])) == (1, "failed", 1), rank
    assert rank["detail"] == "SystemExit: no data"
    assert rank["at"].startswith("train.py:27 sys.exit(")


def masked(text):
    """Text without figures that are no sizes, what the rehearsal took, and breaks of lines."""
    text = re.sub(r"(?m)^cost .*$|─", "", text)
    return " ".join(re.sub(r"\d[\d,.]*+(?! [KMG]iB)", "N", text).split())


@pytest.mark.usefixtures("standin")
def test_what_the_page_shows_is_printed():
    page = [one for one in blocks("docs/rehearsal.md") if one.language in ("sh", "text")]
    command, shown = (one.text for one in page[:2])
    program = "import sys; from tuner.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, *shlex.split(command)[1:]],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "100"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    printed = masked(done.stdout)
    first, rest = shown.split("\n...\n")
    assert printed.startswith(masked(first))
    assert masked(rest) in printed


REPORTS = """
import torch
from tuner.integrations import report_step
weight = torch.nn.Parameter(torch.ones(8, device="cuda"))
generator, critic = torch.optim.SGD([weight]), torch.optim.SGD([weight])
kept = []
for _ in range(9):
    for optimizer in (critic, critic, generator):
        kept.append(torch.ones(64 << 18, device="cuda"))
        weight.sum().backward()
        optimizer.step()
    report_step()
"""


def test_steps_are_those_that_a_script_reports(rehearse):
    """Each of them has three of optimizers, and takes 3 x 64 MiB more."""
    code, found = rehearse(REPORTS, ["--cluster", "h100-80gb"], ["python"])
    (rank,) = found["ranks"]
    assert (code, rank["outcome"]) == (0, "ok"), rank
    held = [step["allocated_bytes"] >> 26 for step in rank["steps"]]
    assert held == [3, 6, 9]


def test_without_a_cluster_nothing_runs_out(rehearse):
    launch = ["accelerate", "launch", "--num_processes", "2", "--multi_gpu", "--mixed_precision=no"]
    code, found = rehearse(PLAIN, ["--steps", "1"], launch, "64000")
    (rank,) = found["ranks"]
    assert (code, found["fits"], rank["world_size"]) == (0, None, 2), rank
    assert rank["memory"]["allocated_bytes"] > 80 * 2**30


def test_a_steps_time_is_near_the_products_own_for_the_same_step(rehearse):
    text = (Path(__file__).parent / "scripts" / "plain.py").read_text()
    launch = ["torchrun", "--nproc-per-node", "8"]
    options = ["--cluster", "8xh100-80gb", "--steps", "1"]
    code, found = rehearse(text, options, launch, "--checkpoint")
    (rank,) = found["ranks"]
    time = rank["time"]
    assert (code, len(rank["steps"]), time["unknown"]) == (0, 1, ""), time
    assert (time["uncounted"], time["tokens_per_step"]) == ([], 8 * 2 * 4096)
    step, exposed = time["step_time_s"], time["exposed_s"]
    assert (step["provenance"], exposed["provenance"]) == ("predicted", "predicted")
    workload = Workload(
        model=published_model("llama-3.1-8b"), sequence_length=4096, global_batch_size=16,
        precision=Precision.BF16,
    )  # fmt: skip
    of = "sharding=full_shard,micro_batch_size=2,activation_checkpointing=full"
    settings = parse_settings(of + ",gradient_accumulation_steps=1")
    cluster = parse_cluster("8xh100-80gb")
    own = predict(workload, cluster, framework("torch"), settings).step_time_s.value or 0.0
    assert own == pytest.approx(step["value"], rel=0.05)
    assert 0 < exposed["value"] < 0.1 * own  # layers are gathered and reduced behind computing
    kinds = {part["kind"] for part in time["parts"]}
    assert kinds >= {"matrix products", "attention", "other kernels", "all_gather"}
