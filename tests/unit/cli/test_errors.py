"""Every error is one line on stderr; with ``--json`` it is one object on stdout as well."""

import re
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tuner.cli.errors import exit_code
from tuner.errors import NothingFitsError, ProbeError, StoppedError, StoreError, UsageError
from tuner.machine import ReportedGpu

HOSTILE = {
    "not JSON": "{",
    "not an object": "[1]",
    "negative layers": '{"model_type": "llama", "num_hidden_layers": -1}',
    "unknown type": '{"model_type": "mamba9"}',
    "own code": '{"model_type": "llama", "auto_map": {"AutoModel": "evil.Model"}}',
    "a hub kernel": '{"model_type": "llama", "attn_implementation": "org/repo"}',
    "deep": "[" * 100_000,
}

BAD_OPTIONS: list[tuple[str, list[str], str]] = [
    ("unknown model", ["--model", "lama-3.1-8b"], r"model: .*llama-3\.1-8b"),
    ("no such file", ["--model", "./none/config.json"], r"model: got .*none/config\.json"),
    ("unknown GPU", ["--cluster", "8xa1000-80gb"], r"cluster: .*a100-80gb"),
    ("other machine", ["--cluster", "8xa100-80gb"], r"cluster: .*8xa100-80gb.* this machine is "),
    ("other nodes", ["--cluster", "4x8xh100-80gb"], r"cluster: .*4x8xh100-80gb"),
    ("no cluster", ["--cluster", "12 gpus"], r"cluster: got '12 gpus'; must look like"),
    ("no cluster file", ["--cluster", "none.toml"], r"cluster: got 'none\.toml'"),
    ("no ranks", ["--cluster", "cpu:0"], r"cluster: got 'cpu:0'"),
    (
        "odd batch",
        ["--global-batch-size", "7", "--framework", "accelerate"],
        r"global_batch_size: got 7; must be",
    ),
    ("no batch", ["--global-batch-size", "many"], r"global_batch_size: got 'many'; must be"),
    ("zero batch", ["--global-batch-size", "0"], r"global_batch_size: got '0'; must be"),
    ("long sequence", ["--sequence-length", "9999"], r"sequence_length: got 9999; tiny takes 256"),
    ("optimizer", ["--optimizer", "lion"], r"optimizer: got 'lion'; must be one of adamw, "),
    ("precision", ["--precision", "fp8"], r"precision: got 'fp8'; must be one of bf16, "),
    ("reduction", ["--reduce-dtype", "fp16"], r"reduce_dtype: got 'fp16'; must be one of bf16, "),
    ("framework", ["--framework", "jax"], r"framework: got 'jax'"),
    ("nanotron", ["--framework", "nanotron"], r"framework: got 'nanotron'; is not probed here"),
    (
        "other version",
        ["--framework", "accelerate", "--framework-version", "accelerate=1.10.0"],
        r"framework_version: got 'accelerate=1\.10\.0'; accelerate .* is installed here",
    ),
    ("no version", ["--framework-version", "torch"], r"framework_version: got 'torch'; must look"),
    (
        "fidelity",
        ["--fidelity", "guessed"],
        r"fidelity: got 'guessed'; must be one of auto, measured, emulated, predicted$",
    ),
    ("no probes", ["--max-probes", "0"], r"max_probes: got '0'; must be a positive"),
    ("budget", ["--budget", "soon"], r"budget: got 'soon'; must be a duration such as 90s"),
    ("deadline", ["--probe-deadline", "0"], r"probe_deadline: got '0'; must be longer than 0"),
    ("GPU seconds", ["--max-gpu-seconds", "-1"], r"max_gpu_seconds: got '-1'; must be a positive"),
    ("tolerance", ["--tolerance", "1%"], r"tolerance: got '1%'; must be a number from 0"),
    ("headroom", ["--headroom", "1"], r"headroom: got '1'; must be a number from 0 to below 1"),
    ("memory", ["--memory-limit", "4 gigs"], r"memory_limit: got '4 gigs'; must be a size such as"),
    ("knob", ["--knob", "zero=1"], r"knob: got 'zero'; no such knob; the knobs are sharding, "),
    ("no knob", ["--knob", "tp_size"], r"knob: got 'tp_size'; must look like tp_size=1,2"),
    ("no value", ["--knob", "tp_size="], r"tp_size: got \[\]; must be a list of 1"),
    (
        "knob twice",
        ["--knob", "tp_size=1", "--knob", "tp_size=2"],
        r"knob: .*tp_size is given twice",
    ),
    ("heads", ["--knob", "tp_size=3"], r"tp_size: got 3; must divide"),
    (
        "contradiction",
        ["--knob", "micro_batch_size=3"],
        r"micro_batch_size: got '?3'?; leaves no legal settings",
    ),
    (
        "write what",
        ["--write", "accelerate.yaml"],
        r"write: got 'accelerate\.yaml'; must look",
    ),
    ("write how", ["--write", "slurm=x"], r"write: got 'slurm'; no such format; .*accelerate"),
    (
        "write where",
        ["--write", "accelerate=none/x.yaml"],
        r"write: got 'none/x\.yaml'; there is",
    ),
    ("write a folder", ["--write", "accelerate=."], r"write: got '\.'; is a folder"),
    (
        "inexpressible",
        ["--write", "accelerate=x.yaml"],
        r"write: got 'accelerate=x\.yaml'; .*tp_size=2; ask again with --knob tp_size=1",
    ),
    ("database", ["--db", "mysql://x/y"], r"db: got 'mysql://x/y'; must be sqlite:///"),
    ("no folder", ["--db", "sqlite:////proc/none/x.db"], r"db: got '/proc/none/x\.db'"),
    ("option", ["--bugdet", "10m"], r"No such option: --bugdet .*--budget.*'tuner suggest --help'"),
    ("argument", ["extra"], r"extra.*'tuner suggest --help'"),
]


BAD_SETTINGS: list[tuple[str, str, str]] = [
    ("form", "full_shard", r"settings: got 'full_shard'; must look like knob=value"),
    ("knob", "zero=1", r"settings: got 'zero'; no such knob"),
    ("twice", "tp_size=1,tp_size=2", r"settings: got 'tp_size'; is given twice"),
    ("value", "sharding=full", r"sharding: got 'full'; must be one of ddp"),
    ("number", "micro_batch_size=0", r"micro_batch_size: got 0; must be a positive integer"),
    ("batch", "micro_batch_size=3", r"micro_batch_size: got 3; must divide 4"),
    (
        "contradiction",
        "micro_batch_size=2,gradient_accumulation_steps=4",
        r"gradient_accumulation_steps: got 4; must be 2",
    ),
    ("nodes", "sharding=hybrid_shard", r"sharding: got .*hybrid_shard.*; needs more than one node"),
    ("device", "sharding=full_shard,cpu_offload=true", r"cpu_offload: got 'true'; refused on CPUs"),
]


def asked(tiny: str, *options: str) -> list[str]:
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


def assert_usage_error(result: Any, message: str) -> None:
    """One line, exit code 2, and nothing on stdout."""
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("tuner: error: ")
    assert result.err.endswith("\n")
    assert result.err.count("\n") == 1
    assert re.search(message, result.err), result.err


@pytest.mark.parametrize(("_", "options", "message"), BAD_OPTIONS, ids=[c[0] for c in BAD_OPTIONS])
def test_bad_input_is_one_line_and_writes_nothing(
    cli: Any,
    tiny: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    _: str,
    options: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert_usage_error(cli("suggest", *asked(tiny, *options)), message)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("_", "settings", "message"), BAD_SETTINGS, ids=[c[0] for c in BAD_SETTINGS]
)
def test_bad_settings_are_one_line_and_write_nothing(
    cli: Any, tiny: str, database: Path, _: str, settings: str, message: str
) -> None:
    assert_usage_error(cli("probe", *asked(tiny, "--settings", settings)), message)
    assert not database.exists()


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_configurations_are_refused(
    cli: Any, tmp_path: Path, database: Path, text: str
) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    assert_usage_error(cli("suggest", *asked(str(path))), r"^tuner: error: \w+: got ")
    assert not database.exists()


def test_a_huge_configuration_is_refused_unread(cli: Any, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(100 * 2**20)
    assert_usage_error(cli("suggest", *asked(str(path))), r"model: got .*1 MiB at most")


def test_a_missing_library_is_refused(cli: Any, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.client.place.find_spec", lambda name: None)
    result = cli("suggest", *asked(tiny, "--optimizer", "adamw_8bit"))
    assert_usage_error(result, r"optimizer: got 'adamw_8bit'; needs torchao")


def test_a_cluster_file_with_more_memory_than_there_is(cli: Any, tiny: str, tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(
        "nodes = 1\ngpus_per_node = 2\n"
        f'[gpu]\nname = "cpu"\ndevice = "cpu"\nmemory_bytes = {2**49}\n'
    )
    result = cli("suggest", *asked(tiny, "--cluster", str(path)))
    assert_usage_error(
        result, r"cluster: got .*2 ranks with 524288\.0 GiB each do not fit: this machine has "
    )


def test_gpus_of_this_machine_are_accepted_and_others_refused(
    cli: Any, tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tuner.cli.options import Asked
    from tuner.cli.values import read_options
    from tuner.client.place import check_measurable, place_here

    here = ReportedGpu(name="NVIDIA A100-SXM4-80GB", memory_mib=81920)
    monkeypatch.setattr("tuner.machine.facts.visible_gpus", lambda: (here,) * 4)
    whole = Asked(model=tiny, global_batch_size="8", sequence_length="32", cluster="4xa100-80gb")
    check_measurable(place_here(read_options(whole)).question)
    assert (
        place_here(read_options(replace(whole, cluster="2xa100-80gb"))).question.cluster.world_size
        == 2
    )
    for other in ("8xa100-80gb", "4xa100-40gb", "2x2xa100-80gb", "4xh100-80gb"):
        result = cli("suggest", *asked(tiny, "--cluster", other))
        assert_usage_error(result, rf"cluster: got '{other}'; .* this machine is 4xa100-80gb")


def test_only_a_script_can_do_without_a_model(cli: Any, tiny: str) -> None:
    assert_usage_error(cli("suggest", *asked(tiny)[2:]), "model: got nothing; is required")


def test_all_missing_options_are_named_at_once(cli: Any, tiny: str) -> None:
    words = "Missing options '--global-batch-size', '--sequence-length' and '--settings'; see"
    assert_usage_error(cli("probe", "--model", tiny), words)
    assert_usage_error(cli("suggest"), "'--global-batch-size' and '--sequence-length'; see 'tuner")


@pytest.mark.parametrize("missing", ["--global-batch-size", "--sequence-length"])
def test_a_missing_option_is_one_line(cli: Any, tiny: str, missing: str) -> None:
    arguments = asked(tiny)
    at = arguments.index(missing)
    result = cli("suggest", *arguments[:at], *arguments[at + 2 :])
    assert_usage_error(result, rf"Missing option '{missing}'; see 'tuner suggest --help'")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sugest"], r"No such command 'sugest'. Did you mean 'suggest'\?; see 'tuner --help'"),
        (["studies"], r"Missing command; see 'tuner studies --help'"),
        (["studies", "drop"], r"No such command 'drop'; see 'tuner studies --help'"),
        (["export", "st-1"], r"Missing argument 'FORMAT'; see 'tuner export --help'"),
    ],
)
def test_wrong_commands_are_one_line(cli: Any, arguments: list[str], message: str) -> None:
    assert_usage_error(cli(*arguments), message)


def test_with_json_an_error_is_an_object_too(cli: Any, tiny: str) -> None:
    result = cli("suggest", *asked(tiny, "--optimizer", "lion"), "--json")
    message = "optimizer: got 'lion'; must be one of adamw, adamw_8bit, sgd"
    assert result.code == 2
    wrong = {"field": "optimizer", "value": "lion", "allowed": message.partition("; ")[2]}
    error = {"field": "optimizer", "message": message, "exit_code": 2, "errors": [wrong]}
    assert result.json == {"error": error}
    assert result.err == f"tuner: error: {message}\n"


def test_with_json_a_parsing_error_names_its_option(cli: Any) -> None:
    result = cli("suggest", "--json")
    assert result.json["error"]["field"] == "global_batch_size"
    assert result.err.count("\n") == 1


def test_the_traceback_is_for_those_who_ask(
    cli: Any, tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "Traceback" not in cli("suggest", *asked(tiny, "--optimizer", "lion")).err
    monkeypatch.setenv("TUNER_DEBUG", "1")
    result = cli("suggest", *asked(tiny, "--optimizer", "lion"))
    assert "Traceback" in result.err
    assert result.err.splitlines()[-1].startswith("tuner: error: optimizer: got 'lion'")


def test_an_interrupt_is_no_traceback(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object, **named: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("tuner.cli.studies.run", interrupted)
    assert cli("studies", "list").code == 130
    monkeypatch.setattr("tuner.cli.app.run", interrupted)
    assert (result := cli("studies", "list")).code == 130
    assert (result.out, result.err) == ("", "")


def test_our_own_mistakes_show_their_traceback(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.cli.app.run", lambda arguments: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        cli("studies", "list")


def test_exit_codes() -> None:
    assert exit_code(UsageError("field", 1, "must be 2")) == 2
    assert exit_code(NothingFitsError("nothing fits")) == 3
    assert exit_code(ProbeError("it failed")) == exit_code(StoreError("it failed")) == 1
    assert exit_code(StoppedError(signal.SIGINT, "nothing is lost")) == 130
    assert exit_code(StoppedError(signal.SIGTERM, "nothing is lost")) == 143
