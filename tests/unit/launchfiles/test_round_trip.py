"""What is exported is read back as what it was, in every format that can be checked."""

import re
from dataclasses import replace

import pytest

from tests.questions import question_about
from tests.unit.launchfiles.cases import CASES, EXAMPLES
from tests.unit.launchfiles.test_contract import canonical
from tuner.client.files import case_of
from tuner.core.cluster import parse_cluster
from tuner.core.configuration import KNOBS, parse_settings
from tuner.core.framework import FrameworkName, framework
from tuner.core.quantity import Provenance
from tuner.core.study import Question
from tuner.core.workload import Optimizer, Precision, ReduceDtype, Workload
from tuner.errors import UsageError
from tuner.launchfiles import FORMATS, About, export, why_not
from tuner.launchfiles.files import READERS, read_text
from tuner.model import load_model
from tuner.space import enumerate_space

ABOUT = About(study_id="st-0123456789ab", date="2026-01-15", provenance=Provenance.MEASURED)
CLUSTERS = {"l4": 4, "8xa100-80gb": 16, "2x4xh100-80gb": 16}
"""Global batch sizes by cluster."""
WORKLOADS = (
    {"precision": Precision.BF16, "optimizer": Optimizer.ADAMW},
    {"precision": Precision.BF16_MIXED, "optimizer": Optimizer.SGD},
    {"precision": Precision.FP32, "optimizer": Optimizer.ADAMW_8BIT},
)
KNOBS_WANTED = {"cpu_offload": (False, True)}


SHARDED_IN_FP32 = {"precision": Precision.BF16_MIXED, "reduce_dtype": ReduceDtype.FP32}
"""As torchtitan reduces them."""


def questions(stack, format_name):
    """Of this stack."""
    model = load_model("stories15m")
    more_of = SHARDED_IN_FP32 if format_name == "torchtitan" else WORKLOADS[0]
    kinds = (*zip(CLUSTERS.items(), WORKLOADS, strict=True), (("2x4xh100-80gb", 16), more_of))
    for (cluster, batch), more in kinds:
        workload = Workload(model=model, sequence_length=128, global_batch_size=batch, **more)
        yield Question(
            workload=workload,
            cluster=parse_cluster(cluster),
            framework=framework(stack),
            knobs={} if stack is FrameworkName.NANOTRON else KNOBS_WANTED,
        )


def beside(question, settings, said, decided):
    """All that the file does not say."""
    work = question.workload
    facts = {
        "model": work.model,
        "sequence_length": work.sequence_length,
        "global_batch_size": work.global_batch_size,
        "optimizer": str(work.optimizer),
        "reduce_dtype": str(work.reduce_dtype),
        "framework": str(question.framework.name),
    }
    kept = {name: value for name, value in facts.items() if name not in said}
    if "framework" in said:
        kept["framework"] = facts["framework"]
    knobs = {name: getattr(settings, name) for name in KNOBS if name not in decided}
    return dict(
        cluster=question.cluster,
        precision=str(work.precision),
        framework_versions=question.framework.versions,
        settings=knobs,
        **kept,
    )


STACKS = {"nanotron": (FrameworkName.NANOTRON,), "trainer": (FrameworkName.TRAINER,)}
"""Of which stack's studies a format is; of others too unless it is named here."""


@pytest.mark.parametrize("format_name", [one for one in READERS if one in FORMATS])
def test_what_is_exported_is_read_back(format_name):
    seen = set()
    usual = (FrameworkName.TORCH, FrameworkName.ACCELERATE)
    for stack in STACKS.get(format_name, usual):
        for number, question in enumerate(questions(stack, format_name)):
            for settings in enumerate_space(question).legal[number % 3 :: 3]:
                if why_not(format_name, question, settings) is None:
                    check(format_name, question, settings)
                    seen.add((str(settings.sharding), question.cluster.name))
    assert len(seen) > 2, seen


def check(format_name, question, settings):
    text = export(format_name, question, settings, ABOUT)
    opened = read_text(text, FORMATS[format_name].file_name)
    values, found = opened.values, opened.found
    assert found.format_name == format_name
    decided = set(found.knobs) - (found.unsaid & {"sharding", "tp_size"})
    said = beside(question, settings, set(found.may), decided)
    for name in ("loss", "reduce_dtype"):  # which the file may leave open
        if len(found.may.get(name, ())) > 1:
            said[name] = str(getattr(question.workload, name))
    case = case_of(found, said)
    assert case.settings == settings, (question.workload, values)
    work = case.question.workload
    assert replace(work, model=question.workload.model) == question.workload
    assert work.model.as_config() == question.workload.model.as_config()
    assert case.question.cluster == question.cluster
    assert case.question.framework == question.framework


@pytest.mark.parametrize("format_name", [one for one in FORMATS if one != "trainer"])
def test_what_is_exported_says_all_that_a_check_needs(format_name):
    known, seen = FORMATS[format_name], 0
    parts = [EXAMPLES[format_name].parts(), *(case.parts() for case in CASES.values())]
    for stack in STACKS.get(format_name, (FrameworkName.TORCH, FrameworkName.ACCELERATE)):
        for question in questions(stack, format_name):
            parts += [(question, one) for one in enumerate_space(question).legal[::9]]
    for question, settings in parts:
        if why_not(format_name, question, settings) is not None:
            continue
        text = export(format_name, question, settings, ABOUT)
        case = case_of(read_text(text, known.file_name).found, {})
        assert canonical(question, case.settings) == canonical(question, settings), text
        assert case.question.workload == question.workload
        assert case.question.cluster == question.cluster
        assert case.question.framework.name is question.framework.name
        stated = question.framework.versions
        assert {**case.question.framework.versions, **stated} == case.question.framework.versions
        seen += 1
    assert seen > 3


def test_what_was_changed_since_goes_before_the_header():
    question, settings = EXAMPLES["accelerate"].parts()
    text = export("accelerate", question, settings, ABOUT)
    changed = text.replace("fsdp_offload_params: true", "fsdp_offload_params: false")
    assert changed != text
    case = case_of(read_text(changed, "a.yaml").found, {})
    assert case.settings == replace(settings, cpu_offload=False)
    said = {"sequence_length": 1024, "settings": {"micro_batch_size": 1}}
    case = case_of(read_text(text, "a.yaml").found, said)
    assert case.settings == replace(settings, micro_batch_size=1)
    assert case.question.workload.sequence_length == 1024
    assert case.question.workload.global_batch_size == question.workload.global_batch_size // 2
    question, settings = EXAMPLES["env"].parts()
    text = export("env", question, settings, ABOUT)
    changed = text.replace("TUNED_MICRO_BATCH_SIZE=2", "TUNED_MICRO_BATCH_SIZE=4")
    assert changed != text
    case = case_of(read_text(changed, "tuned.env").found, {})
    assert case.settings == replace(settings, micro_batch_size=4)
    batch = question.workload.global_batch_size
    told = f"exported for a global batch of {batch}, and makes {2 * batch} as it is now"
    assert told in case.notes
    assert not any(
        "exported for" in one for one in case_of(read_text(text, "a.env").found, {}).notes
    )
    for wrong in ("[", "9" * 5000, "'a"):
        broken = text.replace("TUNED_MICRO_BATCH_SIZE=2", f"TUNED_MICRO_BATCH_SIZE={wrong}")
        with pytest.raises(UsageError, match="micro_batch_size"):
            case_of(read_text(broken, "tuned.env").found, {})


@pytest.mark.parametrize("format_name", ["env", "torchrun", "sbatch", "kubernetes"])
def test_a_variable_that_was_changed_is_not_passed_over(format_name):
    question, settings = EXAMPLES[format_name].parts()
    name, text = FORMATS[format_name].file_name, export(format_name, question, settings, ABOUT)

    def changed(variable, value):
        wanted = re.compile(rf"(TUNED_{variable}(?:=|\n\s+value: ))\S+")
        found, count = wanted.subn(rf"\g<1>{value}", text)
        assert count == 1
        return read_text(found, name).found

    length = question.workload.sequence_length * 2
    case = case_of(changed("SEQUENCE_LENGTH", f"{length} # longer"), {})
    assert case.question.workload.sequence_length == length
    assert case_of(changed("OPTIMIZER", "sgd"), {}).question.workload.optimizer == "sgd"
    with pytest.raises(UsageError, match="global_batch_size: got 7; the file makes"):
        case_of(changed("GLOBAL_BATCH_SIZE", "7"), {})
    with pytest.raises(UsageError, match="TUNED_WORLD_SIZE: got '3'; the first lines say"):
        changed("WORLD_SIZE", "3")


@pytest.mark.parametrize(
    ("format_name", "was", "put", "said"),
    [
        ("torchrun", "--nproc-per-node 8", "--nproc-per-node 4", "--nproc-per-node: got 4; .* 8"),
        (
            "torchrun",
            "--nproc-per-node 8",
            f"--nproc-per-node {'9' * 5000}",
            "--nproc-per-node: got",
        ),
        ("sbatch", "--nproc-per-node 8", "--nproc-per-node=2", "--nproc-per-node: got 2"),
        ("sbatch", "#SBATCH --nodes=2", "#SBATCH --nodes=1", "--nodes: got 1; the first lines say"),
        ("sbatch", "--gpus-per-node=8", "--gpus-per-node=4", "--gpus-per-node: got 4"),
        ("kubernetes", "numProcPerNode: 8", "numProcPerNode: 4", "numProcPerNode: got 4"),
        ("env", "TUNED_CLUSTER=", "TUNED_CLUSTER=4xh100-80gb #", "TUNED_WORLD_SIZE: got"),
    ],
)
def test_a_file_that_starts_other_ranks_is_refused(format_name, was, put, said):
    name, text = FORMATS[format_name].file_name, written(format_name)
    changed = text.replace(was, put)
    assert changed != text
    with pytest.raises(UsageError, match=said):
        case_of(read_text(changed, name).found, {})


def written(format_name):
    return export(format_name, *EXAMPLES[format_name].parts(), ABOUT)


def test_ranks_that_a_command_leaves_to_the_machine_are_told():
    changed = re.sub("--nproc-per-node [0-9]+", "--nproc-per-node gpu", written("torchrun"))
    (note,) = read_text(changed, "torchrun.sh").found.notes
    assert "TUNED_WORLD_SIZE is taken for right" in note
    assert read_text(written("torchrun"), "torchrun.sh").found.notes == ()


def test_a_precision_that_the_file_no_longer_says_is_the_weights():
    text = export("accelerate", *CASES["bf16_mixed"].parts(), ABOUT)
    changed = text.replace("mixed_precision: bf16", "mixed_precision: 'no'")
    assert changed != text
    case = case_of(read_text(changed, "a.yaml").found, {})
    assert case.question.workload.precision is Precision.FP32
    assert any("exported in bf16_mixed, which the file no longer says" in n for n in case.notes)
    assert (
        case_of(
            read_text(changed, "a.yaml").found, {"precision": "bf16"}
        ).question.workload.precision
        is Precision.BF16
    )
    adapted = export("accelerate", *CASES["checkpointing_with_adapter"].parts(), ABOUT)
    changed = adapted.replace("mixed_precision: bf16", "mixed_precision: 'no'")
    with pytest.raises(UsageError, match=r"precision: got 'bf16_mixed'; .*: say which"):
        case_of(read_text(changed, "a.yaml").found, {})


def test_code_in_comments_is_told_to_be_unseen():
    notes = read_text(written("accelerate"), "a.yaml").found.notes
    assert any("the script in its comments are not seen" in note for note in notes)


BROKEN = (
    "{",
    "[" * 10**5,
    "[]",
    "{}",
    '{"format": "env", "settings": "", "workload": {"model": null}}',
    '{"format": "env", "settings": "", "cluster": "local"}',
)


@pytest.mark.parametrize("line", BROKEN, ids=range(len(BROKEN)))
def test_a_header_that_was_broken_is_told(line):
    text = export("env", *EXAMPLES["env"].parts(), ABOUT)
    broken = re.sub("(?m)(?:^#   .*\n)+", lambda _: f"#   {line}\n", text)
    assert broken != text
    with pytest.raises(UsageError, match=r"^file: got 'tuned.env'; .* is not as tuner export"):
        read_text(broken, "tuned.env")


@pytest.mark.parametrize("format_name", ["accelerate", "torchtitan", "trainer-flags"])
def test_context_parallelism_is_written_and_read(format_name):
    """Of the Trainer's arguments the shell's variables say it, and its header."""
    chosen = parse_settings(
        "sharding=full_shard,cp_size=4,gradient_accumulation_steps=2,activation_checkpointing=full"
    )
    work = SHARDED_IN_FP32 if format_name == "torchtitan" else {"precision": Precision.BF16}
    stack = "torch" if format_name == "torchtitan" else format_name.partition("-")[0]
    question = question_about("llama-3.1-8b", "8xh100-80gb", stack, tokens=65536, batch=4, **work)
    text = export(format_name, question, chosen, ABOUT)
    found = read_text(text, FORMATS[format_name].file_name).found
    assert case_of(found, {}).settings == chosen
    if format_name == "trainer-flags":
        for line in ("DP_SHARD_SIZE=2", "CP_SIZE=4"):
            assert f"export PARALLELISM_CONFIG_{line}\n" in text
    for other in ("torch", "deepspeed"):
        assert "no context parallelism is written" in (why_not(other, question, chosen) or "")
