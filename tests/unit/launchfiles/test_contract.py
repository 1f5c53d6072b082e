"""What every format keeps, over questions and configurations of all kinds.

``TUNER_WRITE_GOLDEN=1`` writes the golden files instead of comparing.
"""

import ast
import json
import os
import re
import subprocess
import tomllib
from dataclasses import replace
from itertools import product
from pathlib import Path, PurePath

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.profiles import examples
from tests.unit.launchfiles.cases import (
    ABOUT,
    CASES,
    EXAMPLES,
    STATED,
    TORCH,
    Case,
    grid,
    of_script,
    trainer,
)
from tests.unit.launchfiles.readers import READERS, header_of, settings_in
from tuner.core.adapter import Adapter, AdapterMethod
from tuner.core.configuration import Sharding
from tuner.core.framework import Framework, FrameworkName
from tuner.core.packing import Packing
from tuner.core.quantity import Provenance
from tuner.core.script import checkpoints_in_script, is_sharded
from tuner.errors import UsageError
from tuner.launchfiles import FORMATS, About, Stack, export, why_not
from tuner.launchfiles.contract import job_name, sync_acts
from tuner.model import read_model_config

GOLDEN = Path(__file__).parent / "golden"
WITHOUT_COMMENTS = {"trainer", "deepspeed", "json"}


def statements(text):
    """Lines that a shell or Slurm looks at."""
    own = ("#!", "#SBATCH")
    return [one for one in text.split("\n") if not one.startswith("#") or one.startswith(own)]


PARSERS = {
    ".yaml": yaml.safe_load,
    ".json": json.loads,
    ".toml": tomllib.loads,
    ".py": lambda text: ast.dump(ast.parse(text)),
    ".sh": statements,
    ".sbatch": statements,
    ".env": statements,
}


def canonical(question, settings):
    """The configuration with inactive knobs at one value."""
    ranks = settings.data_parallel_size(question.cluster.world_size)
    gathers = settings.tp_size > 1 and question.workload.splits_sequence
    sharded = is_sharded(question, settings) or settings.sharding is Sharding.ZERO1
    if settings.sharding is Sharding.HYBRID_SHARD and question.cluster.nodes == 1:
        settings = replace(settings, sharding=Sharding.FULL_SHARD)  # within the only node
    return replace(
        settings,
        sharding=settings.sharding if sharded and ranks > 1 else Sharding.DDP,
        sync_each_batch=settings.sync_each_batch if sync_acts(question, settings) else True,
        tp_recompute_allgather=settings.tp_recompute_allgather and gathers,
    )


@pytest.mark.parametrize("name", FORMATS)
def test_a_configuration_is_refused_with_a_way_out_or_can_be_read_back(name):
    """And the file says where it is from, and whether its figures are of another stack."""
    known, seen = FORMATS[name], []
    for question, chosen in grid():
        reason = why_not(name, question, chosen)
        if reason is not None:
            assert "ask " in reason or "launch the" in reason, reason
            with pytest.raises(UsageError, match=r"^format: got "):
                export(name, question, chosen, ABOUT)
            continue
        text = export(name, question, chosen, ABOUT)
        if name in READERS:  # the others are read back by the product
            found = settings_in(name, text, question)
            if name.startswith("trainer") and chosen.tp_size > 1:  # the model is loaded so
                beside = " ".join((text, *known.beside(question, chosen)))
                assert f"DistributedConfig(tp_size={chosen.tp_size}, fsdp_size=" in beside
                found = replace(found, tp_size=chosen.tp_size, sharding=chosen.sharding)
            assert canonical(question, found) == canonical(question, chosen), text
        said = text if name in WITHOUT_COMMENTS else header_of(text)
        versions = (STATED[one] for one in known.packages if one in STATED)
        for word in (ABOUT.study_id, ABOUT.date, "measured", *versions):
            assert word in said, word
        if name != "trainer":  # a run's name has no room for more
            assert question.workload.model.name in said
            assert all(figure in said for figure in ABOUT.figures)
        said = " ".join((said, *known.beside(question, chosen)))
        is_nanotron = question.framework.name is FrameworkName.NANOTRON
        own = {FrameworkName.NANOTRON: Stack.NANOTRON, FrameworkName.DEEPSPEED: Stack.DEEPSPEED}
        mine = own.get(question.framework.name, Stack.TORCH)
        differs = known.stack not in (Stack.ANY, mine)
        of = "torch's own sharding (FSDP2 or DDP)" if mine is Stack.TORCH else mine
        assert (f"The figures are of {of}; " in said) is differs, said
        numbers = is_nanotron and differs and known.stack is not Stack.DEEPSPEED
        assert ("with this file both are in bf16" in said) is numbers
        seen.append((is_nanotron, differs))
    assert len(seen) > 5
    assert (True, known.stack not in (Stack.ANY, Stack.NANOTRON)) in seen


def golden(path, text):
    """Compare a text with a golden file, or write it."""
    if os.environ.get("TUNER_WRITE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def test_golden_files():
    for name, case in EXAMPLES.items():
        path = GOLDEN / "formats" / name / FORMATS[name].file_name
        golden(path, export(name, *case.parts(), ABOUT))
    for name, case in CASES.items():
        golden(GOLDEN / f"{name}.yaml", export("accelerate", *case.parts(), ABOUT))
    assert {path.stem for path in GOLDEN.glob("*.yaml")} == set(CASES)
    kept = {path.parent.name for path in (GOLDEN / "formats").rglob("*") if path.is_file()}
    assert kept == set(FORMATS) == set(EXAMPLES)


HOSTILE = st.text(
    st.one_of(st.characters(), st.sampled_from("\n\r\x00\x85\u2028\u2029`'\"$\\#{}[]:;|&<>()!%"))
).map(lambda text: f"x{text}")


def about(text):
    return About(
        study_id=text, date=text, provenance=Provenance.UNKNOWN, versions={"torch": text},
        figures=(text,),
    )  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
@given(hostile=HOSTILE)
@settings(
    max_examples=examples(15),
    suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow],
)
def test_nothing_can_leave_a_comment_or_a_quote(name, hostile):
    """Names of others change what a parser reads where they are values, and nowhere else."""
    question, chosen = EXAMPLES[name].parts()
    model = replace(question.workload.model)
    object.__setattr__(model, "name", hostile)  # past its own checks
    named = replace(question, workload=replace(question.workload, model=model))
    parse = PARSERS[PurePath(FORMATS[name].file_name).suffix]
    text = export(name, named, chosen, about(hostile))
    before = parse(export(name, question, chosen, about("harmless")))
    assert _structure(before) == _structure(parse(text))
    if name in READERS:
        assert canonical(question, settings_in(name, text, named)) == canonical(question, chosen)


# Lines of shell scripts, and fields, with values of others: a study, a date, a model's name.
TOLD = (
    "export TUNED_STUDY_ID=",
    "export TUNED_DATE=",
    "export TUNED_MODEL=",
    "#SBATCH --job-name=tuned",
    "    --run_name ",
)
FIELDS = {"run_name", "tuner", "study_id", "date", "versions", "figures", "model_name", "metadata"}


def _structure(value):
    """A document without the values of others."""
    if isinstance(value, dict):
        return {key: None if key in FIELDS else _structure(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_structure(item) for item in value]
    if isinstance(value, str):
        return next((start for start in TOLD if value.startswith(start)), value)
    return value


def test_a_file_names_itself_as_it_is_written_and_only_packages_that_train_under_it():
    """Of the others people would look for a place that is not there."""
    path = "runs/my run/one.x"
    found = {**STATED, "python": "3.11.7", "peft": "0.21.0", "torchao": "0.18.0"}
    commands = {
        "accelerate": "accelerate launch --config_file 'runs/my run/one.x' SCRIPT.py",
        "trainer-flags": "sh 'runs/my run/one.x' SCRIPT.py",
        "torch": "Put one.x beside your training script",
        "torchrun": "sh 'runs/my run/one.x' SCRIPT.py",
        "nanotron": "run_train.py --config-file 'runs/my run/one.x'",
        "torchtitan": "torchtitan.train --job.config_file 'runs/my run/one.x'",
        "sbatch": "sbatch 'runs/my run/one.x' SCRIPT.py",
        "kubernetes": "kubectl apply -f 'runs/my run/one.x'",
        "env": "(. './runs/my run/one.x')",
    }
    for name in FORMATS:
        question, chosen = EXAMPLES[name].parts()
        text = export(name, question, chosen, replace(ABOUT, path=path, versions=found))
        said = " ".join(text.replace("\n#", " ").split())
        assert commands.get(name, "") in said, name
        assert FORMATS[name].file_name not in text, name
        for package in ("python 3", "peft", "torchao"):  # of the first sentence
            needed = package == "torchao" and "adamw_8bit" in text
            assert (package in said.partition(" - ")[0]) is needed, (name, package)
    script = of_script("accelerate")
    assert "python 3.11.7" in export("torchrun", *script, replace(ABOUT, versions=found))


def test_a_shell_takes_hostile_names_for_what_they_are(tmp_path):
    hostile = "x'; touch broken; echo '$(touch broken) `touch broken` \"\n touch broken #"
    for name in ("env", "torchrun", "sbatch", "trainer-flags"):
        text = export(name, *EXAMPLES[name].parts(), about(hostile))
        checked = subprocess.run(["sh", "-n"], input=text, text=True, capture_output=True)
        assert checked.returncode == 0, checked.stderr
    text = export("env", *EXAMPLES["env"].parts(), about(hostile))
    (tmp_path / "tuned.env").write_text(text, encoding="utf-8")
    command = '. ./tuned.env && printf %s "$TUNED_STUDY_ID"'
    found = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True)
    assert found.stdout == hostile.replace("\n", " ").replace("`", "'")
    assert not (tmp_path / "broken").exists()
    names = [job_name(study) for study in ("st-0123456789ab", "X" * 99, "-a..b-", "ä ö", "")]
    label = r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?"
    assert all(re.fullmatch(label, name) for name in names)  # RFC 1035


def test_packing_is_written_where_batches_are_and_refused_elsewhere():
    def asked(variant, cluster="2xa100-80gb", by=TORCH):
        workload = {"packing": Packing.from_dict({"variant": variant})}
        case = Case(settings="sharding=ddp", cluster=cluster, framework=by, workload=workload)
        return case.parts()

    question, settings = asked("varlen")
    for name in ("torch", "deepspeed", "torchtitan"):
        assert "no packing is written" in (why_not(name, question, settings) or ""), name
    text = export("accelerate", question, settings, ABOUT)
    assert 'attn_implementation="flash_attention_2"' in text
    assert "transformers 4.44 or newer, flash-attn 2.7 or newer" in " ".join(text.split("\n# "))
    assert "collate_fn=collate" in text
    assert "TUNED_PACKING=varlen" in export("env", question, settings, ABOUT)
    flags = export("trainer-flags", *asked("varlen", by=trainer()), ABOUT)
    assert "packing=True and max_length=" in " ".join(flags.replace("#", "").split())
    assert "no kernels for a CPU" in (why_not("accelerate", *asked("varlen", "cpu:2")) or "")
    on_cpu = export("accelerate", *asked("position_ids", "cpu:2"), ABOUT)
    assert 'attn_implementation="sdpa"' in on_cpu
    assert "take the format accelerate" in (
        why_not("trainer", *asked("block_diagonal", by=trainer())) or ""
    )
    # columns are dropped but where the collator takes documents
    padded = {"packing": Packing.from_dict({"variant": "padded", "documents": {"mean": 9}})}
    case = Case(settings="sharding=ddp", framework=trainer(), workload=padded)
    for parts, drops in ((case.parts(), True), (asked("position_ids", by=trainer()), False)):
        assert (
            "remove_unused_columns" not in json.loads(export("trainer", *parts, ABOUT))
        ) == drops


def test_adapters_are_written_where_peft_is_and_refused_elsewhere():
    adapter = Adapter(rank=8, target_modules=("q_proj",))
    question, settings = Case(settings="sharding=ddp", workload={"adapter": adapter}).parts()
    quantized = replace(adapter, method=AdapterMethod.QLORA, double_quant=False)
    work = replace(question.workload, adapter=quantized)
    for name in ("torch", "deepspeed", "torchtitan"):
        assert "no adapter is written" in (why_not(name, question, settings) or ""), name
    for name in ("accelerate", "trainer-flags"):
        of = FrameworkName.ACCELERATE if name == "accelerate" else FrameworkName.TRAINER
        asked = replace(question, framework=Framework(name=of, versions=STATED))
        text = export(name, asked, settings, ABOUT)
        assert "LoraConfig(" in text
        assert "lora of rank 8 on q_proj" in text
        assert "quantization_config" not in text
        text = export(name, replace(asked, workload=work), settings, ABOUT)
        assert 'bnb_4bit_quant_type="nf4"' in text
        assert "bnb_4bit_use_double_quant=False" in text
        assert "qlora of rank 8 on q_proj beside nf4" in text
    assert "TUNED_LORA_RANK=8" in export("env", question, settings, ABOUT)
    told = export("env", replace(question, workload=work), settings, ABOUT)
    assert "TUNED_DOUBLE_QUANT=false" in told
    for sharding, by in product(("full_shard", "shard_grad_op"), (TORCH, trainer())):
        case = Case(settings=f"sharding={sharding}", framework=by, workload={"adapter": adapter})
        for name in ("trainer", "trainer-flags"):
            assert "each matrix of an adapter by itself" in (why_not(name, *case.parts()) or "")
        assert why_not("accelerate", *case.parts()) is None


def test_layers_that_draw_random_numbers_are_checkpointed_by_the_script():
    """accelerate's option restores no random state: a dropout's backward would be another one's."""
    full = "sharding=full_shard,activation_checkpointing=full"
    by_option = {"adapter": Adapter(rank=8, dropout=0.0)}, {}
    for workload in ({"adapter": Adapter(rank=8)}, *by_option):
        question, settings = Case(settings=full, workload=workload).parts()
        in_script = workload not in by_option
        assert checkpoints_in_script(question, settings) is in_script
        text = export("accelerate", question, settings, ABOUT)
        assert f"fsdp_activation_checkpointing: {str(not in_script).lower()}" in text
        assert ('# enable({"use_reentrant": False})' in text) is in_script
    # OPT's class drops a tenth, which a configuration need not say
    opt = read_model_config({"model_type": "opt", "num_hidden_layers": 24}, name="opt")
    traced = replace(question, workload=replace(question.workload, model=opt))
    assert checkpoints_in_script(traced, settings)
