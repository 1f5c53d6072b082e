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

# One of each kind: the table of what is refused is of the model that refuses it.
BAD_OPTIONS: list[tuple[list[str], str]] = [
    (["--model", "lama-3.1-8b"], r"model: .*llama-3\.1-8b"),
    (["--model", "./none/config.json"], r"model: got .*none/config\.json"),
    (["--cluster", "8xa100-80gb"], r"cluster: .*8xa100-80gb.* this machine is "),
    (["--cluster", "none.toml"], r"cluster: got 'none\.toml'"),
    (["--global-batch-size", "7", "--framework", "accelerate"], r"global_batch_size: got 7; must"),
    (["--global-batch-size", "many"], r"global_batch_size: got 'many'; must be"),
    (["--framework", "nanotron"], r"framework: got 'nanotron'; is not probed here"),
    (["--framework", "accelerate", "--framework-version", "accelerate=1.10.0"],
     r"framework_version: got 'accelerate=1\.10\.0'; accelerate .* is installed here"),
    (["--framework-version", "torch"], r"framework_version: got 'torch'; must look"),
    (["--budget", "soon"], r"budget: got 'soon'; must be a duration such as 90s"),
    (["--probe-deadline", "0"], r"probe_deadline: got '0'; must be longer than 0"),
    (["--tolerance", "1%"], r"tolerance: got '1%'; must be a number from 0"),
    (["--memory-limit", "4 gigs"], r"memory_limit: got '4 gigs'; must be a size such as"),
    (["--knob", "tp_size"], r"knob: got 'tp_size'; must look like tp_size=1,2"),
    (["--knob", "tp_size=1", "--knob", "tp_size=2"], r"knob: .*tp_size is given twice"),
    (["--knob", "micro_batch_size=3"], r"micro_batch_size: got '?3'?; leaves no legal settings"),
    (["--write", "accelerate.yaml"], r"write: got 'accelerate\.yaml'; must look"),
    (["--write", "slurm=x"], r"write: got 'slurm'; no such format; .*accelerate"),
    (["--write", "accelerate=none/x.yaml"], r"write: got 'none/x\.yaml'; there is"),
    (["--write", "accelerate=x.yaml"], r"write: got .*tp_size=2; ask again with --knob tp_size=1"),
    (["--db", "mysql://x/y"], r"db: got 'mysql://x/y'; must be sqlite:///"),
    (["--db", "sqlite:////proc/none/x.db"], r"db: got '/proc/none/x\.db'"),
    (["--bugdet", "10m"], r"No such option: --bugdet .*--budget.*'tuner suggest --help'"),
    (["extra"], r"extra.*'tuner suggest --help'"),
]  # fmt: skip
BAD_SETTINGS: list[tuple[str, str]] = [
    ("full_shard", r"settings: got 'full_shard'; must look like knob=value"),
    ("tp_size=1,tp_size=2", r"settings: got 'tp_size'; is given twice"),
    ("sharding=full", r"sharding: got 'full'; must be one of ddp"),
    ("micro_batch_size=3", r"micro_batch_size: got 3; must divide 4"),
    ("sharding=full_shard,cpu_offload=true", r"cpu_offload: got 'true'; refused on CPUs"),
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


def test_with_json_an_error_is_an_object_too(cli: Any, tiny: str) -> None:
    result = cli("suggest", *asked(tiny, "--optimizer", "lion"), "--json")
    message = "optimizer: got 'lion'; must be one of adamw, adamw_8bit, sgd"
    assert result.code == 2
    wrong = {"field": "optimizer", "value": "lion", "allowed": message.partition("; ")[2]}
    error = {"field": "optimizer", "message": message, "exit_code": 2, "errors": [wrong]}
    assert result.json == {"error": error}
    assert result.err == f"tuner: error: {message}\n"


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


def test_bad_input_is_one_line_and_writes_nothing(
    cli: Any, tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    for settings, message in BAD_SETTINGS:
        assert_usage_error(cli("probe", *asked(tiny, "--settings", settings)), message)
    assert_usage_error(cli("suggest", *asked(tiny)[2:]), "model: got nothing; is required")
    monkeypatch.setattr("tuner.client.place.find_spec", lambda name: None)
    result = cli("suggest", *asked(tiny, "--optimizer", "adamw_8bit"))
    assert_usage_error(result, r"optimizer: got 'adamw_8bit'; needs torchao")
    assert sorted(tmp_path.rglob("*")) == before


def test_wrong_words_are_one_line(cli: Any, tiny: str) -> None:
    for words, message in (
        ("sugest", r"No such command 'sugest'. Did you mean 'suggest'\?; see 'tuner --help'"),
        ("studies", r"Missing command; see 'tuner studies --help'"),
        ("studies drop", r"No such command 'drop'; see 'tuner studies --help'"),
        ("export st-1", r"Missing argument 'FORMAT'; see 'tuner export --help'"),
        ("suggest", "'--global-batch-size' and '--sequence-length'; see 'tuner"),
        (
            f"probe --model {tiny}",
            "Missing options '--global-batch-size', '--sequence-length' and '--settings'; see",
        ),
        (
            f"suggest --model {tiny} --global-batch-size 8",
            "Missing option '--sequence-length'; see 'tuner suggest --help'",
        ),
    ):
        assert_usage_error(cli(*words.split()), message)
    result = cli("suggest", "--json")
    assert result.json["error"]["field"] == "global_batch_size"
    assert result.err.count("\n") == 1
