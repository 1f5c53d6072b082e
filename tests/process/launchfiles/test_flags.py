"""Each flag of exported files, seen to act: a step under a file has the facts of the probe's."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.process.launchfiles.launching import ROOT, all_json, launched, save_tiny_llama
from tests.unit.launchfiles.cases import ABOUT, STATED, Case
from tuner.core.configuration import KNOBS
from tuner.core.framework import Framework, FrameworkName
from tuner.core.measurement import Phase
from tuner.core.workload import Optimizer, Precision, ReduceDtype
from tuner.cost.script import PLAIN, script_bytes
from tuner.dryrun.plan import rank_spec
from tuner.errors import UsageError
from tuner.launchfiles import FORMATS as FILES
from tuner.launchfiles import export, why_not
from tuner.model import read_model_config
from tuner.space import check_settings

# Many tokens for a small model: see FEW_BYTES.
TOKENS, VOCABULARY, HIDDEN = 256, 256, 64
SHAPE = {
    "vocab_size": VOCABULARY, "hidden_size": HIDDEN, "intermediate_size": 64,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4,
    "max_position_embeddings": TOKENS, "tie_word_embeddings": False,
}  # fmt: skip
TWICE = "micro_batch_size=4,gradient_accumulation_steps=2,sync_each_batch"
MIXED, BF16 = {"precision": Precision.BF16_MIXED}, {"precision": Precision.BF16}
FP32 = {"precision": Precision.FP32}
WIDE = {"reduce_dtype": ReduceDtype.FP32}
WIDE_SGD = {**MIXED, **WIDE, "optimizer": Optimizer.SGD}
FULL, FUSED = "activation_checkpointing=full", "fused_loss=true"
# Settings on two GPUs, or on groups of two, and more of the workload.
STEPS = {
    "full_shard": (f"sharding=full_shard,{TWICE}=true", MIXED),
    "shard_grad_op": (f"sharding=shard_grad_op,{TWICE}=true,{FULL}", BF16),
    "no_sync": (f"sharding=full_shard,{TWICE}=false,cpu_offload=true", FP32),
    "ddp": (f"sharding=ddp,{TWICE}=false,{FULL}", FP32),
    "ddp_each": (f"sharding=ddp,{TWICE}=true", {**MIXED, "reduce_dtype": ReduceDtype.FP32}),
    "full": (f"sharding=full_shard,{TWICE}=true,{FULL}", MIXED),
    "every_2": (f"sharding=full_shard,{TWICE}=true,activation_checkpointing=every_2", FP32),
    "selective": (f"sharding=full_shard,{TWICE}=true,activation_checkpointing=selective", WIDE_SGD),
    "offload": (f"sharding=full_shard,{TWICE}=true,activation_checkpointing=offload", MIXED),
    "split_shards": (f"sharding=full_shard,tp_size=2,{TWICE}=true", {**MIXED, **WIDE}),
    "fused_loss": (f"sharding=full_shard,{TWICE}=true,{FUSED},{FULL}", MIXED),
}
FORMATS = {
    "accelerate": FrameworkName.ACCELERATE,
    "trainer": FrameworkName.TRAINER,
    "torch": FrameworkName.TORCH,
}
# What must be the same to the last element. Bytes may differ by a micro-batch's tokens and labels.
SAME = (
    "optimizer_steps", "micro_batches", "collectives", "parameters", "gradients", "state",
    "computes", "optimizer", "wrappers", "units", "clips", "saved_on_host",
)  # fmt: skip
BYTES = {"torch.bfloat16": 2, "torch.float32": 4}
# Less than a bf16 tensor of tokens x hidden size of each layer (512 KiB), and more than what a rank
# holds by chance: gloo's two threads let go of a collective's buffers some time after its end, and
# the largest is a layer's parameters in fp32 (113 KiB).
FEW_BYTES = 400 * 1024
# Steps that no argument of the Trainer's says.
NOT_OF_TRAINER = {"selective", "fused_loss"}
SPLIT = {"split_shards": 4}  # by transformers, on so many ranks
SHARDED = STEPS.keys() - {"ddp", "ddp_each", *SPLIT}
# Old releases, with what they need of others; and by format the steps that it cannot say for them.
OLD = (
    (
        {
            "accelerate": "1.8.1", "transformers": "4.52.4", "tokenizers": "0.21.4",
            "huggingface_hub": "0.36.0",
        },
        {"accelerate": {"no_sync", "every_2", "offload"}, "trainer": SHARDED | {"ddp_each"}},
    ),
    (
        {
            "accelerate": "1.11.0", "transformers": "5.2.0", "tokenizers": "0.22.2",
            "huggingface_hub": "1.3.0",
        },
        {"accelerate": {"offload"}, "trainer": NOT_OF_TRAINER | {"every_2", "offload"}},
    ),
)  # fmt: skip


def _question(name, framework, releases):
    """Question and settings; the model is that of the checkpoint."""
    known, (text, workload) = FORMATS[framework], STEPS[name]
    # only of those that the framework is built on
    stated = {"torch": STATED["torch"]} if framework == "torch" else dict(releases)
    case = Case(
        model="stories15m",
        cluster=f"{SPLIT.get(name, 2)}xl4",
        sequence_length=TOKENS,
        settings=text,
        framework=Framework(name=known, versions=stated),
        workload=workload,
    )
    question, settings = case.parts()
    model = read_model_config({**SHAPE, "model_type": "llama"}, "tiny")
    return replace(question, workload=replace(question.workload, model=model)), settings


def _on_cpu(code):
    """A module for GPUs, for ranks of a CPU."""
    for gpu, cpu in (
        ('"nccl"', '"gloo"'),
        ('"cuda"', '"cpu"'),
        ("pin_memory=True", "pin_memory=False"),
        ('    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))\n', ""),
        (", device_ids=[torch.cuda.current_device()]", ""),
    ):
        code = code.replace(gpu, cpu)
    return code


def _job(folder, name, kind, releases, changed="", to=None):
    """What ``facts.py`` is told; nothing where the format refuses the settings.

    A flag of the file can be ``changed`` to another value; it is of the job's name then.
    """
    question, settings = _question(name, "accelerate" if kind == "probe" else kind, releases)
    work = question.workload
    job = {
        "name": f"{name} {changed}".strip(),
        "kind": kind,
        "path": None,
        "precision": str(work.precision),
        "global_batch_size": work.global_batch_size,
        "sequence_length": TOKENS,
    }
    if kind == "probe":
        once = dict.fromkeys(("warmup_steps", "tracked_steps", "measured_steps"), 1)
        more = {"memory_limit_bytes": None, "seed": 1, "minimum_steps": 1, "time_budget_s": 1.0}
        counts = {"accumulation_counts": [settings.gradient_accumulation_steps], "device": "cpu"}
        job["spec"] = {**rank_spec(work, settings, question.cluster), **once, **more, **counts}
        return job
    try:
        legal = check_settings(question, settings, given=KNOBS)
    except UsageError:
        return None
    if legal != settings or why_not(kind, question, settings) is not None:
        return None
    text = export(kind, question, settings, ABOUT)
    if kind == "trainer":
        here = {"use_cpu": True, "output_dir": str(folder / "out")}
        text = json.dumps({**json.loads(text), **here}, indent=1)
        (said,) = [one for one in FILES[kind].beside(question, settings) if "Load" in one]
        job["code"] = said.partition("\n")[2]
    if changed:
        flag = re.compile(rf'(\b{changed}"?: ).+?(,?)$', re.MULTILINE)
        text, count = flag.subn(rf"\g<1>{to}\g<2>", text)
        assert count == 1, changed
    path = folder / f"{job['name']}.{kind}.py"
    path.write_text(_on_cpu(text) if kind == "torch" else text, encoding="utf-8")
    return {**job, "path": str(path)}


def _facts(folder, steps, kinds, releases=STATED, packages=None, changes=(), ranks=2):
    """Facts of a step by its name and what made it, of two ranks; ``packages`` go before ours.

    ``changes`` are of a step, a format, a flag and its other value.
    """
    save_tiny_llama(folder / "model", **SHAPE)
    wanted = [(name, kind) for name in steps for kind in kinds]
    told = ((name, kind, releases, *rest) for name, kind, *rest in (*wanted, *changes))
    jobs = [job for one in told if (job := _job(folder, *one)) is not None]
    (folder / "jobs.json").write_text(json.dumps(jobs), encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    command += [str(ranks), str(Path(__file__).parent / "facts.py")]
    path = {"PYTHONPATH": f"{packages}:{ROOT}"} if packages else {}
    out = launched([*command, str(folder / "model"), str(folder / "jobs.json")], **path)
    found = {(one["name"], one["kind"]): one for one in all_json(out) if "kind" in one}
    assert len(found) == len(jobs)
    return found


def _of_trainer(probe):
    """What the Trainer does to a step by itself: it clips, which sums a norm over shards; and it
    leaves number formats to accelerate, which under autocast casts outputs too."""
    expected = {**probe, "clips": 1}
    if units := probe["units"]:
        (own,) = probe["parameters"]
        expected["collectives"] = {**probe["collectives"], f"all_reduce {own}": 1}
        mixed = units[0]["computes"] != own
        casts = units[0]["computes"] if mixed else "None"
        expected["units"] = [{**unit, "casts_output": casts} for unit in units]
    return expected


def _of_root_unit(probe):
    """The probe's facts as of accelerate before 1.14, where embedding and head are the root's."""
    if not probe["units"]:
        return probe
    embedding, *layers, tail = probe["units"]
    both = embedding["elements"] + tail["elements"]
    units = [{**embedding, "first": "LlamaForCausalLM", "elements": both}, *layers]
    gathers = probe["micro_batches"] * (2 if embedding["reshards"] else 1)
    counts, sent = dict(probe["collectives"]), dict(probe["sent_bytes"])
    gathered, reduced = f"all_gather {tail['computes']}", f"reduce_scatter {tail['reduces']}"
    counts[gathered] = gathers * len(units)
    counts[reduced] = counts[reduced] * len(units) // len(probe["units"])
    sent[gathered] = gathers * sum(u["elements"] for u in units) * BYTES[tail["computes"]]
    return {**probe, "units": units, "collectives": counts, "sent_bytes": sent}


def _assert_same(found, expected, about, more=0.0):
    """``more`` bytes are held at the peak beside those expected, or at least half of them."""
    for key in SAME:
        assert found[key] == expected[key], (about, key)
    sent = {name: size for name, size in found["sent_bytes"].items() if "all_reduce" not in name}
    for name, size in sent.items():
        assert size == expected["sent_bytes"][name], (about, name)
    held, peak = (found[key] - expected[key] for key in ("held_bytes", "peak_bytes"))
    assert abs(held) < FEW_BYTES + more, (about, held)
    assert more / 2 - FEW_BYTES < peak < FEW_BYTES + more, (about, peak)


def _priced(name, releases):
    """What is predicted to be held at the peak beside it for these releases."""
    question, settings = _question(name, "accelerate", releases)
    beside = script_bytes(question.workload, settings, 1, question.framework, PLAIN)
    return sum(beside[Phase.BACKWARD].values())


def _check(found):
    for (name, kind), facts in found.items():
        if kind != "probe":
            probe = found[name, "probe"]
            expected = _of_trainer(probe) if kind == "trainer" else probe
            _assert_same(facts, expected, (name, kind))


@pytest.mark.usefixtures("preloading")
@pytest.mark.slow
def test_a_step_under_each_file_is_the_probes(tmp_path):
    """Two optimizer steps of two micro-batches on two ranks, of accelerate's, the Trainer's and
    torch's files."""
    found = _facts(tmp_path, ("full_shard", "shard_grad_op"), ("probe", *FORMATS))
    assert len(found) == 8
    _check(found)


@pytest.mark.usefixtures("preloading")
@pytest.mark.slow
@pytest.mark.parametrize("name", SPLIT)
def test_a_step_that_transformers_splits_is_the_probes(tmp_path, name):
    """Of accelerate and the Trainer, whose model transformers splits and shards as it loads it: the
    same collectives and units as of the probe's own tensor parallelism."""
    found = _facts(tmp_path, (name,), ("probe", "accelerate", "trainer"), ranks=SPLIT[name])
    probe = found[name, "probe"]
    names = {"VocabParallelEmbedding": "Embedding"}
    units = [{**one, "first": names.get(one["first"], one["first"])} for one in probe["units"]]
    assert {one["shards"] for one in units} == {2}
    for kind in ("accelerate", "trainer"):
        facts = found[name, kind]
        # modules of the probe's own are not linears, and have another name
        expected = {**probe, "units": units, "computes": ["torch.bfloat16"], "wrappers": []}
        if kind == "trainer":  # it sums a norm over each mesh, by itself
            norms = facts["collectives"].pop("all_reduce torch.float32")
            assert 0 < norms < 5
        _assert_same(facts, expected, kind)


# A flag of a step's file, another value of it, and a fact that then differs.
CHANGES = (
    ("full", "accelerate", "fsdp_reshard_after_forward", "false", "units"),
    ("full", "accelerate", "fsdp_offload_params", "true", "units"),
    ("full_shard", "accelerate", "fsdp_auto_wrap_policy", "NO_WRAP", "units"),
    ("full", "accelerate", "fsdp_transformer_layer_cls_to_wrap", "LlamaMLP", "units"),
    ("full", "accelerate", "fsdp_activation_checkpointing", "false", "held_bytes"),
    ("ddp_each", "accelerate", "mixed_precision", "'no'", "computes"),
    ("full", "trainer", "per_device_train_batch_size", 1, "held_bytes"),
    ("full", "trainer", "gradient_accumulation_steps", 1, "micro_batches"),
    ("full", "trainer", "sync_each_batch", "false", "collectives"),
    ("full", "trainer", "optim", '"sgd"', "optimizer"),
    ("full", "trainer", "bf16", "false", "units"),
    ("full", "trainer", "fsdp", "false", "wrappers"),
    ("full", "trainer", "reshard_after_forward", "false", "units"),
    ("full", "trainer", "cpu_offload", "true", "units"),
    ("full_shard", "trainer", "auto_wrap_policy", '"NO_WRAP"', "units"),
    ("every_2", "trainer", "every_n_layers", 1, "held_bytes"),
    ("offload", "trainer", "offload", "false", "saved_on_host"),
)


@pytest.mark.usefixtures("preloading")
@pytest.mark.long
def test_every_step_is_the_probes_and_no_fact_is_blind_to_a_flag(tmp_path):
    changes = [change[:4] for change in CHANGES]
    whole = STEPS.keys() - SPLIT.keys()
    found = _facts(tmp_path, sorted(whole), ("probe", *FORMATS), changes=changes)
    as_written = {key: facts for key, facts in found.items() if key[0] in STEPS}
    assert {name for name, kind in as_written if kind == "trainer"} == whole - NOT_OF_TRAINER
    _check(as_written)
    for name, kind, flag, _, fact in CHANGES:
        changed, same = found[f"{name} {flag}", kind][fact], found[name, kind][fact]
        assert changed != same, (kind, flag)
        assert fact != "held_bytes" or abs(changed - same) > FEW_BYTES, (kind, flag)


@pytest.mark.long
@pytest.mark.parametrize(("releases", "refused"), OLD, ids=("1.8", "1.11"))
def test_a_step_of_old_releases_is_the_probes(tmp_path, releases, refused):
    """In an environment of their own, which is made for it, from PyPI."""
    packages = tmp_path / "packages"
    wanted = [f"{package}=={release}" for package, release in releases.items()]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
    made = subprocess.run([*pip, packages, *wanted], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"pip installs no {' '.join(wanted)}: {made.stderr.strip()[-200:]}")
    steps = sorted(STEPS.keys() - SPLIT.keys())
    probes = _facts(tmp_path, steps, ("probe",))
    stated = {**STATED, **{name: releases[name] for name in ("accelerate", "transformers")}}
    found = _facts(tmp_path, steps, refused, stated, packages)
    for kind, not_written in refused.items():
        assert {name for name, made_by in found if made_by == kind} == set(steps) - not_written
    for (name, kind), facts in found.items():
        probe = _of_root_unit(probes[name, "probe"])
        expected = _of_trainer(probe) if kind == "trainer" else probe
        _assert_same(facts, expected, (name, kind), _priced(name, stated))
