"""Fields in TOML, in flags of a command and in Python: read, and changed where they stand."""

import pytest

from tuner.client.files import asked_of
from tuner.client.from_file import patched, read_question
from tuner.client.values import NotCoveredError
from tuner.core.configuration import parse_settings
from tuner.core.framework import installed_versions
from tuner.errors import UsageError
from tuner.launchfiles.files import PYTHON as PYTHON_SYNTAX
from tuner.launchfiles.files import open_file

PLACE = {"cluster": "8xh100-80gb"}
TOML = """\
# our run
[model]
name = "llama3"
flavor = "8B"

[training]
local_batch_size = 1  # fits
seq_len = 4096
global_batch_size = 64
steps = 1000

[parallelism]
data_parallel_shard_degree = -1

[activation_checkpoint]
mode = "full"   # to be safe
"""
PYTHON = '''\
"""Our run, é."""

from torchtitan.models.llama3 import llama3_8b


def ours():
    config = llama3_8b()
    config.training.num_tokens_per_microbatch_per_dp_rank = 1 * 4096  # é fits
    config.training.num_tokens_per_train_step = 64 * 4096
    config.training.max_context_length = 4096
    config.activation_checkpoint = FullAC.Config()  # to be safe
    config.optimizer.lr = 1e-4
    return config
'''
FLAGS = """\
#!/bin/sh
# trains: --bf16 false
accelerate launch sft.py \\
    --model_name_or_path Qwen/Qwen3-8B --max-length 2048 \\
    --per_device_train_batch_size 1 --gradient_accumulation_steps=4 \\
    --use_peft --learning_rate 1e-4 \\
    --output_dir "out dir"
"""
RUN_CLM = FLAGS.replace("sft.py", "run_clm.py").replace("--max-length", "--block_size").replace(
    "--use_peft", "--bf16 true"
)  # fmt: skip


@pytest.fixture
def written(tmp_path):
    def write(name, text):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


CASES = [
    (
        "titan.toml",
        TOML,
        "torchtitan",
        {"sequence_length": 4096, "global_batch_size": 64, "precision": "bf16_mixed"},
        "sharding=full_shard,micro_batch_size=4,gradient_accumulation_steps=2",
        {"local_batch_size = 1": "local_batch_size = 4", '"full"': '"none"'},
    ),
    (
        "titan.py",
        PYTHON,
        "torchtitan",
        {"sequence_length": 4096, "global_batch_size": 64, "precision": "bf16_mixed"},
        "sharding=full_shard,micro_batch_size=4,gradient_accumulation_steps=2",
        {"1 * 4096": "16384", "FullAC.Config()": "None"},
    ),
    (
        "train.sh",
        FLAGS,
        "trl",
        {"sequence_length": 2048, "global_batch_size": 32, "framework": "trainer"},
        "micro_batch_size=2,gradient_accumulation_steps=2,sync_each_batch=false",
        {"batch_size 1": "batch_size 2", "steps=4": "steps=2",
         '"out dir"': '"out dir" --gradient_checkpointing false'},
    ),
    (
        "clm.sh",
        RUN_CLM,
        "trainer",
        {"sequence_length": 2048, "global_batch_size": 32, "precision": "bf16_mixed"},
        "micro_batch_size=2,gradient_accumulation_steps=2,sync_each_batch=false",
        {"batch_size 1": "batch_size 2", "steps=4": "steps=2"},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "format_name", "facts", "best", "lines"), CASES)
def test_a_file_is_read_and_changed_where_its_fields_stand(
    written, name, text, format_name, facts, best, lines
):
    path = written(name, text)
    question = read_question(path, None, {**PLACE, "fidelity": "predicted"})
    assert question.opened.found.format_name == format_name
    asked = question.asked.arguments
    assert {one: asked[one] for one in facts} == facts
    assert asked["model"].layers == (36 if "Qwen3" in text else 32)
    made, _ = patched(
        question, question.request.question(installed_versions()), parse_settings(best)
    )
    expected = text
    for old, new in lines.items():
        assert expected.count(old) == 1
        expected = expected.replace(old, new)
    assert made == expected


def test_what_is_not_there_is_put_in_or_asked_for(written):
    short = TOML.partition("[activation_checkpoint]")[0]  # whose default is every second layer
    question = read_question(written("a.toml", short), None, {**PLACE, "fidelity": "predicted"})
    wanted = parse_settings("sharding=full_shard,activation_checkpointing=full,micro_batch_size=1")
    made, _ = patched(question, question.request.question(installed_versions()), wanted)
    assert made == short + '[activation_checkpoint]\nmode = "full"\n'
    bare = PYTHON.replace("    config.activation_checkpoint = FullAC.Config()  # to be safe\n", "")
    question = read_question(written("a.py", bare), None, {**PLACE, "fidelity": "predicted"})
    with pytest.raises(UsageError, match=r"says nothing of activation_checkpoint.mode"):
        patched(question, question.request.question(installed_versions()), wanted)


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("a.toml", "[model", r"is not TOML"),
        ("a.py", "def (", r"is not Python"),
        ("a.py", "x = 1", r"is like none of the formats"),
        ("a.sh", "echo", r"is like none of the formats"),
    ],
)
def test_a_text_that_is_no_configuration_is_refused(written, name, text, why):
    with pytest.raises(UsageError, match=why):
        open_file(written(name, text))


def test_other_parallelism_of_torchtitans_is_not_predicted(written):
    path = written("a.toml", TOML.replace("-1", "-1\nexpert_parallel_degree = 2"))
    with pytest.raises(NotCoveredError, match=r"expert_parallel_degree: .*not predicted"):
        asked_of(open_file(path).found, PLACE)


def test_torchtitans_context_parallelism_is_read(written):
    path = written("a.toml", TOML.replace("-1", "-1\ncontext_parallel_degree = 2"))
    asked = asked_of(open_file(path).found, PLACE)
    assert asked.knobs["cp_size"] == 2
    assert asked.arguments["global_batch_size"] == 64


def test_one_of_several_configurations_is_to_be_kept(written):
    """A function that is handed one only helps to make it."""
    helped = PYTHON + "\n\ndef compiled(config):\n    config.compile.enable = True\n"
    assert [one.key for one in open_file(written("a.py", helped)).found.uncounted] == [
        "compile.enable"
    ]
    others = (
        "def other() -> Trainer.Config:\n    return llama3_8b()\n\n\nlast = X(training=T(a=1))\n"
    )
    with pytest.raises(UsageError, match=r"3 configurations.*keep one of ours, other, last$"):
        open_file(written("a.py", f"{PYTHON}\n\n{others}"))


HELPERS = {
    "called": "def base():\n    return Trainer.Config(training=T(local_batch_size=9))\n\n\n",
    "started": "def main():\n    Trainer(config=ours(), loss=None).train()\n\n\n",
    "logged": "log(loss='mean')\nmetrics = M(loss=other)\n\n\n",
}


@pytest.mark.parametrize("kind", ["called", "started", "logged"])
def test_what_a_file_says_beside_its_configuration_is_not_of_it(written, kind):
    """A function that another one calls is no configuration by itself, wherever it stands."""
    ours = PYTHON.replace("llama3_8b()", "base()") if kind == "called" else PYTHON
    for text in (HELPERS[kind] + ours.split("\n\n", 1)[1], f"{ours}\n\n{HELPERS[kind]}"):
        found = open_file(written("a.py", text)).found
        assert found.knobs["micro_batch_size"] == 1
        assert found.knobs.get("fused_loss") is (None if kind == "called" else True)
    only = PYTHON_SYNTAX.parse(
        "config = Trainer.Config(validator=V(training=T(a=1)), compile=C(enable=True))"
    )
    assert only["compile"] == {"enable": True}
    assert "training" not in only


def test_what_a_registered_configuration_says_is_read_as_far_as_it_decides(written):
    text = PYTHON.replace("llama3_8b", "llama3_70b").replace(
        "    config.activation_checkpoint = FullAC.Config()  # to be safe\n", ""
    ).replace("    config.training.max_context_length = 4096\n", "")  # fmt: skip
    found = open_file(written("a.py", text)).found
    assert (found.knobs["tp_size"], found.knobs["activation_checkpointing"]) == (8, "full")
    assert [(one.key, one.effect) for one in found.uncounted] == [
        ("training.seq_len", "is llama3_70b's own, and counted as 2048")
    ]


@pytest.mark.parametrize(
    "line", ["config.training.enable_cpu_offload = OURS", "config.training.max_context_length *= 2"]
)
def test_what_is_no_plain_value_is_refused_where_it_counts(written, line):
    text = PYTHON.replace("    return", f"    config.training.{line}\n    return")
    with pytest.raises(UsageError, match="must be"):
        open_file(written("a.py", text))


def test_a_policy_that_is_not_imported_is_not_written():
    text = "config.activation_checkpoint = SelectiveAC.Config()\n"
    with pytest.raises(UsageError, match="FullAC: import it there first"):
        PYTHON_SYNTAX.edit(text, {"activation_checkpoint": {"mode": "full"}})


def test_a_module_of_torchtitans_that_says_nothing_of_training_is_torchtitans(written):
    text = "parallelism.tensor_parallel_degree = 2\nconfig.activation_checkpoint = FullAC.Config()"
    assert open_file(written("a.py", f"config.{text}\n")).found.format_name == "torchtitan"


def test_the_last_of_what_a_configuration_says_holds(written):
    made = "Trainer.Config(training=TrainingConfig(local_batch_size=8, seq_len=4096))"
    text = f"def ours():\n    config = {made}\n    config.training.local_batch_size = 2\n"
    opened = open_file(written("a.py", text))
    assert opened.found.knobs["micro_batch_size"] == 2
    changed = PYTHON_SYNTAX.edit(text, {"training": {"local_batch_size": 4}})
    assert changed == text.replace("size = 2", "size = 4")


def test_checkpointing_is_written_as_it_is_spelled_there():
    by_mode = "config.activation_checkpoint = A(mode='selective', selective_ac_option='2')"
    wanted = {"activation_checkpoint": {"mode": "none", "selective_ac_option": None}}
    assert PYTHON_SYNTAX.edit(by_mode, wanted) == by_mode.replace("selective'", "none'", 1)
    with pytest.raises(UsageError, match="no policy for activation_checkpointing=every_2 is"):
        PYTHON_SYNTAX.edit(PYTHON, {"activation_checkpoint": {"mode": "every_2"}})


OPERATORS = (
    "keeps every second matrix product, and is counted as activation_checkpointing=selective"
)
POLICIES = [
    ("config.activation_checkpoint = SelectiveAC.Config()", "selective", OPERATORS),
    ("", "selective", OPERATORS),
    ("config.activation_checkpoint = A(mode='selective')", "selective", OPERATORS),
    ("config.activation_checkpoint.selective_ac_option = 'op'", "selective", OPERATORS),
    ("config.activation_checkpoint = MemoryBudgetAC.Config()", "selective", "the compiler chooses"),
    ("config.activation_checkpoint = A(mode='selective', selective_ac_option='2')", "every_2", ""),
    ("config.activation_checkpoint.selective_ac_option = '3'", "every_2", "one layer in 3, and is"),
    ("config.activation_checkpoint.selective_ac_option = '1'", "full", ""),
    ("config.activation_checkpoint = A(mode='full')", "full", ""),
    ("config.activation_checkpoint = None", "none", ""),
    ("config.activation_checkpoint = FullAC.Config(context=None)", "full", ""),
]


@pytest.mark.parametrize(("line", "counted", "told"), POLICIES)
def test_a_policy_of_operators_is_not_taken_for_every_second_layer(written, line, counted, told):
    said = "config.activation_checkpoint = FullAC.Config()  # to be safe"
    found = open_file(written("a.py", PYTHON.replace(said, line))).found
    assert found.knobs["activation_checkpointing"] == counted
    effects = [one.effect for one in found.uncounted]
    assert len(effects) == bool(told)
    assert all(told in one for one in effects)


@pytest.mark.parametrize(
    ("line", "fused"),
    [
        ("", True),  # as what it begins with
        ("config.loss = ChunkedLossWrapper.Config(loss_fn=CrossEntropyLoss.Config())", True),
        ("config.loss = ChunkedLossWrapper.Config(num_chunks=4)", True),
        ("config.loss = ChunkedLossWrapper.Config(num_chunks=PARTS)", True),
        ("config.loss = ChunkedLossWrapper.Config(num_chunks=1)", None),
        ("config.loss = CrossEntropyLoss.Config()", None),
        ("config.loss.num_chunks = 1", None),
        ("config.loss = replace(config.loss, num_chunks=8)", True),
        ('config.loss = getattr(config.loss, "loss_fn", config.loss)', None),
    ],
)
def test_a_loss_of_parts_is_the_fused_one(written, line, fused):
    text = PYTHON.replace("    return", f"    {line}\n    return")
    found = open_file(written("a.py", text)).found
    assert found.knobs.get("fused_loss") is fused
    assert [one.key for one in found.uncounted] == ["loss.num_chunks"] * ("=4" in line)
    assert "fused_loss" not in open_file(written("a.toml", TOML)).found.knobs


def _options(parser):
    """A parser's long options, each with a value where it takes one."""
    longest = [(max(one.option_strings, key=len), one.nargs) for one in parser._actions
               if one.option_strings]  # fmt: skip
    return [f"{name} 1" if nargs is None else name for name, nargs in longest if name[:2] == "--"]


def test_flags_of_launchers_are_none_of_the_scripts(written):
    from accelerate.commands.launch import launch_command_parser
    from torch.distributed.run import get_args_parser

    plain = open_file(written("plain.sh", RUN_CLM)).found
    for launcher, parser in (
        ("accelerate launch", launch_command_parser()), ("torchrun", get_args_parser()),
    ):  # fmt: skip
        own = [one for one in _options(parser) if one.split()[0] not in SHARDING]
        own = [one for one in own if one.split()[0] not in ("--module", "--help")]
        assert len(own) > 15
        started = f"{launcher} {' '.join(own)} \\\n run_clm.py"
        text = RUN_CLM.replace("accelerate launch run_clm.py", started)
        assert open_file(written("own.sh", text)).found == plain


SHARDING = (
    "--config_file", "--use_deepspeed", "--deepspeed_config_file", "--use_fsdp",
    "--use_megatron_lm", "--use_parallelism_config",
)  # fmt: skip


@pytest.mark.parametrize("flag", SHARDING)
def test_a_launcher_that_shards_is_not_taken_for_ddp(written, flag):
    text = RUN_CLM.replace("launch run", f"launch {flag} z3.yaml run")
    with pytest.raises(UsageError, match=rf"{flag}: got 'z3.yaml'; is the launcher's"):
        open_file(written("a.sh", text))
    behind = f"deepspeed train.py --deepspeed_config ds.json {RUN_CLM.partition('clm.py')[2]}"
    with pytest.raises(UsageError, match=r"--deepspeed_config: got 'ds.json'.*with --from"):
        open_file(written("a.sh", behind))
