"""Every error is one line on stderr; with ``--json`` it is one object on stdout as well."""

import re
import signal

import pytest

from tuner.cli.errors import report
from tuner.core import framework as framework_module
from tuner.core.workload import Optimizer
from tuner.errors import (
    NothingFitsError,
    OtherLimitsError,
    ProbeError,
    ServiceError,
    SpeedUnknownError,
    StoppedError,
    StoreError,
    TrainsWronglyError,
    TunerError,
    UnknownNameError,
    UsageError,
)

# One of each kind: the table of what is refused is of the model that refuses it.
BAD_OPTIONS = [
    (["--model", "lama-3.1-8b"], r"model: .*llama-3\.1-8b"),
    (["--cluster", "8xa100-80gb"], r"cluster: .*8xa100-80gb.* this machine is "),
    (["--global-batch-size", "7", "--framework", "accelerate"], r"global_batch_size: got 7; must"),
    (["--framework", "nanotron"], r"framework: got 'nanotron'; is not probed here"),
    (["--framework", "deepspeed"], r"framework: got 'deepspeed'; is not probed here"),
    (["--knob", "cp_size=1,2"], r"cp_size: got '1, 2'; above 1 is not probed here"),
    (
        ["--adapter", "lora", "--quantize", "int8", "--precision", "bf16_mixed"],
        r"quantize: got 'int8'; is not probed here: have a script",
    ),
    (["--framework", "accelerate", "--framework-version", "accelerate=1.10.0"],
     r"framework_version: got 'accelerate=1\.10\.0'; accelerate .* is installed here"),
    (["--framework-version", "torch"], r"framework_version: got 'torch'; must look"),
    (["--adapter", "lora", "--lora-rank", "20000"], r"lora_rank: got 20000; must be an integer"),
    (["--adapter", "lora", "--lora-targets", "q_proj, query,"], r"lora_targets: got 'query'; must"),
    (["--adapter", "lora", "--lora-targets", ","], r"lora_targets: got ''; must be all-linear, or"),
    (["--adapter", "lora", "--lora-targets", "q_porj"], r"lora_targets: .*did you mean q_proj"),
    (["--adapter", "lora", "--quantize", "nf4"], r"quantize: got 'nf4'; needs the method qlora"),
    (["--adapter", "qlora", "--double-quant", "maybe"], r"double_quant: .*; must be true or false"),
    (["--lora-targets", "q_proj"], r"lora_targets: got 'q_proj'; needs --adapter lora"),
    (["--documents", "mean=8"], r"documents: got 'mean=8'; needs --packing"),
    (["--packing", "--documents", "many"], r"documents: got 'many'; must be mean=N, lengths"),
    (["--packing", "--documents", "0x3"], r"documents: .* of integers above 0"),
    (["--packing", "some"], r"packing: got 'some'; must be one of varlen"),
    (["--packing", ""], r"packing: got ''; must be one of varlen"),
    (["--packing", "+x"], r"packing: got '\+x'; must be one of varlen"),
    (["--model", "--packing", "--loss", "hf"], r"model: got '--packing'; "),
    (["--packing", "padded"], r"documents: .*with variant padded"),
    (["--budget", "soon"], r"budget: got 'soon'; must be a duration such as 90s"),
    (["--knob", "tp_size=1", "--knob", "tp_size=2"], r"knob: .*tp_size is given twice"),
    (["--write", "accelerate.yaml"], r"write: got 'accelerate\.yaml'; must look"),
    (["--framework", "torch", "--write", "accelerate=x.yaml"], r"tp_size=2; ask again with --knob"),
    (["--write", "accelrate=x"], r"write: got 'accelrate'; no such name; did you mean accelerate"),
    (["--knob", "tp=1"], r"knob: got 'tp'; no such knob \(did you mean tp_size\?\); the knobs are"),
    (["--knob", "sharding=zero3"], r"sharding: got 'zero3'; .*\(did you mean full_shard\?\)"),
    (["--knob", "sharding=zero2"], r"sharding: got 'zero2'; .*\(did you mean shard_grad_op\?\)"),
    (["--knob", "sharding=fsdp"], r"sharding: got 'fsdp'; .*\(did you mean full_shard\?\)"),
    (["--knob", "sharding=hsdp"], r"sharding: got 'hsdp'; .*\(did you mean hybrid_shard\?\)"),
    (["--knob", "sharding=fullshard"], r"sharding: got 'fullshard'; .*did you mean full_shard\?"),
    (["--optimizer", "adamv"], r"optimizer: got 'adamv'; must be .*\(did you mean adamw\?\)"),
    (["--sequence-length", "8kk"], r"'8kk'; must be a positive whole number, such as 8192 or 8k"),
    (["--tokens", "1Q"], r"tokens: got '1Q'; must be a number of tokens, such as 300B or 1T"),
    (["--db", "mysql://x/y"], r"db: got 'mysql://x/y'; must be sqlite:///"),
    (["--sharding", "ddp"], r"No such option: --sharding: .*--knob sharding=VALUE"),
    (["--gbs", "8"], r"No such option: --gbs \(did you mean --global-batch-size\?\); see"),
    (["--method", "lora"], r"No such option: --method \(did you mean --adapter\?\)"),
    (["--gpus", "8"], r"No such option: --gpus \(did you mean --cluster\?\)"),
    (["--seq-len", "8"], r"No such option: --seq-len \(did you mean --sequence-length\?\)"),
    (["--seq", "8"], r"No such option: --seq \(did you mean --sequence-length\?\)"),
    (["--cp", "2"], r"No such option: --cp: a knob is given as --knob cp_size=VALUE"),
    (["--mbs", "8"], r"No such option: --mbs: a knob is given as --knob micro_batch_size=VALUE"),
    (["--lr", "1e-4"], r"No such option: --lr; see 'tuner suggest --help'"),
    (["--bugdet", "10m"], r"No such option: --bugdet .*--budget.*'tuner suggest --help'"),
    (["extra"], r"extra.*'tuner suggest --help'"),
]  # fmt: skip


def asked(tiny, *options):
    """A good question about a tiny model, with some options in place of its own."""
    good = {
        "--model": tiny,
        "--cluster": "cpu:2",
        "--global-batch-size": "8",
        "--sequence-length": "32",
    }
    for name in options[::2]:
        good.pop(name, None)
    return [*(part for pair in good.items() for part in pair), *options]


def assert_usage_error(result, message):
    """One line, exit code 2, and nothing on stdout."""
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("tuner: error: ")
    assert result.err.endswith("\n")
    assert result.err.count("\n") == 1
    assert re.search(message, result.err), result.err


def test_with_json_an_error_is_an_object_too(cli, tiny):
    result = cli("suggest", *asked(tiny, "--optimizer", "lamb"), "--json")
    message = "optimizer: got 'lamb'; must be one of " + ", ".join(Optimizer)
    assert result.code == 2
    wrong = {"field": "optimizer", "value": "lamb", "allowed": message.partition("; ")[2]}
    error = {"field": "optimizer", "message": message, "exit_code": 2, "errors": [wrong]}
    assert result.json == {"error": error}
    assert result.err == f"tuner: error: {message}\n"


def test_the_traceback_is_for_those_who_ask(cli, tiny, monkeypatch):
    assert "Traceback" not in cli("suggest", *asked(tiny, "--optimizer", "lamb")).err
    monkeypatch.setenv("TUNER_DEBUG", "1")
    result = cli("suggest", *asked(tiny, "--optimizer", "lamb"))
    assert "Traceback" in result.err
    assert result.err.splitlines()[-1].startswith("tuner: error: optimizer: got 'lamb'")


def test_an_interrupt_is_no_traceback(cli, monkeypatch):
    def interrupted(*arguments, **named):
        raise KeyboardInterrupt

    for place in ("tuner.cli.studies.is_there", "tuner.cli.app.run"):
        monkeypatch.setattr(place, interrupted)
        result = cli("studies", "list")
        assert (result.code, result.out, result.err) == (130, "", "")


def test_our_own_mistakes_show_their_traceback(cli, monkeypatch):
    monkeypatch.setattr("tuner.cli.app.run", lambda arguments: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        cli("studies", "list")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SpeedUnknownError("no speed"), 1),
        (OtherLimitsError("st-1", {}), 1),
        (StoreError("it failed"), 1),
        (ServiceError("it failed"), 1),
        (ProbeError("it failed"), 1),
        (UsageError("field", 1, "must be 2"), 2),
        (UnknownNameError("model", "x", ["y"]), 2),
        (NothingFitsError("nothing fits"), 3),
        (TrainsWronglyError("all are wrong"), 4),
        (StoppedError(signal.SIGINT, "nothing is lost"), 130),
        (StoppedError(signal.SIGTERM, "nothing is lost"), 143),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, TunerError) else None,
)
def test_exit_codes(error, code):
    assert report(error, as_json=False) == code


def test_bad_input_is_one_line_and_writes_nothing(cli, tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    huge, own = tmp_path / "huge.json", tmp_path / "own.json"
    with huge.open("wb") as file:
        file.truncate(100 * 2**20)
    own.write_text('{"model_type": "llama", "auto_map": {"AutoModel": "evil.Model"}}')
    before = sorted(tmp_path.rglob("*"))
    for options, message in (
        *BAD_OPTIONS,
        (["--model", str(huge)], r"model: got .*1 MiB at most"),
        (["--model", str(own)], r"^tuner: error: \w+: got "),
    ):
        assert_usage_error(cli("suggest", *asked(tiny, *options)), message)
    result = cli("probe", *asked(tiny, "--settings", "micro_batch_size=3"))
    assert_usage_error(result, "micro_batch_size: got 3; must divide 4")
    assert_usage_error(cli("suggest", *asked(tiny)[2:]), "--model is required")
    known = framework_module._installed
    hidden = {"torchao", "peft", "bitsandbytes"}
    monkeypatch.setattr(
        framework_module, "_installed", lambda name: "" if name in hidden else known(name)
    )
    result = cli("suggest", *asked(tiny, "--optimizer", "adamw_8bit"))
    assert_usage_error(result, r"optimizer: got 'adamw_8bit'; needs torchao")
    result = cli("suggest", *asked(tiny, "--optimizer", "lion"))
    assert_usage_error(result, r"optimizer: got 'lion'; needs bitsandbytes")
    result = cli("suggest", *asked(tiny, "--adapter", "lora", "--fidelity", "measured"))
    assert_usage_error(result, r"adapter: got 'lora'; needs peft, .* pip install peft")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_group_alone_lists_or_says_what_it_can_do(cli):
    for group, listed in (("studies", "no studies yet"), ("db", "upgrade")):
        result = cli(group)
        assert (result.code, listed in result.out) == (0, True), result


def test_wrong_words_are_one_line(cli, tiny):
    for words, message in (
        ("sugest", r"No such command 'sugest'. Did you mean 'suggest'\?; see 'tuner --help'"),
        (f"probe --model {tiny}", "Missing option '--settings'; see 'tuner probe --help'"),
        ("worker --launcher foo", "Invalid value for '--launcher': 'foo' is not one of 'local'"),
        (f"suggest --model {tiny} --global-batch-size 8", "--sequence-length is required"),
        ("suggest --from nowhere.yml", "file: got 'nowhere.yml'; there is no such file"),
        ("suggest -f nowhere.toml", "file: got 'nowhere.toml'; there is no such file"),
        ("predict --cases nowhere", "cases: got 'nowhere'; there is no such file"),
        (
            "suggest --model nowhere.json --global-batch-size 8 --sequence-length 8",
            "model: got 'nowhere.json'; there is no such file",
        ),
        (f"suggest --model {tiny} --in-place", "in_place: got true; needs --from FILE"),
    ):
        assert_usage_error(cli(*words.split()), message)
    result = cli("suggest", "--json")
    assert [one["field"] for one in result.json["error"]["errors"]] == [
        "model", "sequence_length", "global_batch_size",
    ]  # fmt: skip
    assert result.err.count("\n") == 3
