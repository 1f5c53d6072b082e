"""Frameworks' own scripts, unmodified, as one rank of many without a GPU."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent / "scripts"
FSDP = [
    "accelerate", "launch", "--num_processes", "8", "--use_fsdp", "--mixed_precision", "no",
    "--fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP",
    "--fsdp_transformer_layer_cls_to_wrap", "MistralDecoderLayer",
]  # fmt: skip
TORCHRUN = ["torchrun", "--nproc-per-node", "8"]
ACCELERATE = [*FSDP[:4], "--multi_gpu", "--mixed_precision", "bf16"]
SMALL = ["--layers", "2", "--hidden", "512", "--sequence", "256", "--save-steps", "2"]
# What TRL and torchtitan read of a folder: a model, its tokenizer, and lines of text.
LOCAL = """
import json, sys
from pathlib import Path
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast
where = Path(sys.argv[1])
letters = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<s>", "</s>"]
own = Tokenizer(models.BPE(vocab={one: n for n, one in enumerate(letters)}, merges=[]))
own.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
own.decoder = decoders.ByteLevel()
told = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>"}
PreTrainedTokenizerFast(tokenizer_object=own, **told).save_pretrained(where)
llama = AutoConfig.for_model(
    "llama", hidden_size=512, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=1,
    intermediate_size=1792, vocab_size=32_000,
)
AutoModelForCausalLM.from_config(llama, dtype=torch.bfloat16).save_pretrained(where)
(where / "text").mkdir()
line = json.dumps({"text": "what is written in a line " * 40})
(where / "text" / "train.jsonl").write_text(400 * (line + chr(10)))
"""
TITAN = """
[model]
name = "llama3"
flavor = "debugmodel"
hf_assets_path = "local"
[training]
dataset = "c4_test"
dataset_path = "local/text"
local_batch_size = 4
seq_len = 512
steps = 10
[activation_checkpoint]
mode = "full"
[checkpoint]
enable = true
interval = 2
"""


@pytest.fixture(scope="session")
def local(tmp_path_factory):
    """A small model, its tokenizer and a text in a folder, which is made once."""
    folder = tmp_path_factory.mktemp("made") / "local"
    folder.mkdir()
    subprocess.run([sys.executable, "-c", LOCAL, str(folder)], check=True, capture_output=True)
    return folder


def _needs(*packages):
    missing = [name for name in packages if find_spec(name) is None]
    return [pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} is not installed")]


@pytest.mark.parametrize(
    ("script", "launch", "arguments"),
    [
        ("trainer.py", [*FSDP, "--fsdp_version", "1"], SMALL),
        ("trainer.py", [*FSDP, "--fsdp_version", "2"], SMALL),
        (
            "trainer.py",
            [*FSDP, "--fsdp_version", "1", "--fsdp_use_orig_params", "true"],
            [*SMALL, "--lora", "--reentrant"],
        ),
        ("trainer.py", TORCHRUN, SMALL),
        ("trainer.py", TORCHRUN, [*SMALL, "--compile"]),
        ("loop.py", ACCELERATE, []),
        ("loop.py", ACCELERATE, ["--compile"]),
        pytest.param("sft.py", TORCHRUN, ["local"], marks=_needs("trl")),
        pytest.param(
            "sft.py", TORCHRUN, ["local", "--four-bits"], marks=_needs("trl", "bitsandbytes")
        ),
        *(
            pytest.param(
                "deep.py", ["deepspeed"], ["--stage", str(stage)], marks=_needs("deepspeed")
            )
            for stage in (1, 2, 3)
        ),
        pytest.param(
            "", [*TORCHRUN, "-m", "torchtitan.train", "--job.config_file", "titan.toml"], [],
            marks=_needs("torchtitan"),
        ),
    ],
    ids=["fsdp1", "fsdp2", "fsdp1-lora", "ddp", "ddp-compiled", "accelerate", "accelerate-compiled",
         "trl-lora", "trl-qlora", "zero1", "zero2", "zero3", "torchtitan"],
)  # fmt: skip
def test_frameworks_run_unmodified(rehearse, local, tmp_path, script, launch, arguments):
    (tmp_path / "local").symlink_to(local)
    (tmp_path / "titan.toml").write_text(TITAN)
    text = (SCRIPTS / script).read_text() if script else None
    before = sorted(local.rglob("*"))
    code, found = rehearse(text, ["--cluster", "8xa100-80gb"], launch, *arguments)
    (rank,) = found["ranks"]
    assert (code, rank["outcome"], rank["world_size"]) == (0, "ok", 8), rank
    first, _, last = rank["steps"]
    assert rank["time"]["step_time_s"]["value"] > 0, rank["time"]["unknown"]
    assert first["allocated_bytes"] < last["allocated_bytes"] * 1.01  # with the optimizer's states
    assert any(one["op"] in ("all_reduce", "reduce_scatter") for one in rank["collectives"])
    if script != "deep.py":  # which saves nothing
        savers = ("safetensors", "state_dict_saver")
        assert any(name in one for name in savers for one in rank["not_run"]), rank["not_run"]
    assert sorted(local.rglob("*")) == before
    assert {path.name for path in tmp_path.iterdir()} <= {"train.py", "titan.toml", "local"}


def test_steps_of_deepspeed_are_its_engines(rehearse):
    """Two micro-batches are one, though stage 3 steps its optimizer for each group."""
    pytest.importorskip("deepspeed")
    text, options = (SCRIPTS / "deep.py").read_text(), ["--cluster", "8xa100-80gb", "--steps", "2"]
    code, found = rehearse(text, options, ["deepspeed"], "--stage", "3")
    (rank,) = found["ranks"]
    assert (code, [step["step"] for step in rank["steps"]]) == (0, [1, 2]), rank
    # each micro-batch scatters gradients once, of four in all
    scattered = [one["bytes"] for one in rank["collectives"] if one["op"] == "reduce_scatter"]
    assert sum(scattered) >= 4 * 2 * 40_000_000


def test_experts_are_routed_alike(rehearse):
    """A loop over experts meets all of them, each with its part of the tokens, and so holds what a
    grouped product does, whose sizes are the same for any routing."""
    text = (SCRIPTS / "experts.py").read_text()
    peaks = {}
    for way in ("eager", "grouped_mm"):
        code, found = rehearse(text, ["--cluster", "a100-80gb"], ["python"], way)
        assert code == 0, found
        assert "routing" in found["ranks"][0]["patched"]
        peaks[way] = found["ranks"][0]["steps"][-1]["by_phase"]
    assert peaks["eager"]["optimizer"] == peaks["grouped_mm"]["optimizer"]
    # gradients of all experts, and a copy of one's more
    assert peaks["eager"]["backward"] == pytest.approx(peaks["grouped_mm"]["backward"], rel=0.1)
