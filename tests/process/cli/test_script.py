"""``tuner suggest --script`` and ``tuner probe --script``."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.process.cli.test_end_to_end import LONGEST_S, PROGRAM

SCRIPTS = Path(__file__).parents[1] / "workers" / "scripts"
BATCH = ("--micro", "{micro_batch_size}", "--accumulation", "{gradient_accumulation_steps}")


def asked(tiny, *more, script="plain.py"):
    return (
        *(("--model", tiny) if tiny else ()),
        *("--cluster", "cpu:2", "--global-batch-size", "4"),
        *("--sequence-length", "32", "--script", str(SCRIPTS / script), *more),
    )


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--fidelity", "predicted", "--", *BATCH), "fidelity: got 'predicted'; a script is run"),
        (("--launch", "mpirun", "--", *BATCH), "launch: got 'mpirun'; must be one of torchrun, ac"),
        (
            ("--template", "none.yaml", "--", *BATCH),
            "template: got 'none.yaml'; there is no such file",
        ),
        (("--script-env", "X", "--", *BATCH), "script_env: got 'X'; must look like NAME="),
        (("--server", "http://127.0.0.1:1", "--", *BATCH), "services take no scripts"),
        (("--ray", "10.0.0.1:6379", "--", *BATCH), "is for --launcher ray"),
    ],
)
def test_what_is_refused(cli, tiny, more, said):
    result = cli("suggest", *asked(tiny, *more))
    assert result.code == 2, result
    assert said in result.err
    assert result.out == ""


@pytest.mark.slow
@pytest.mark.usefixtures("preloading")
def test_a_script_is_tuned_and_its_command_told(tiny, tmp_path):
    more = ("--max-probes", "2", "--db", f"sqlite:///{tmp_path / 'studies.db'}", "--json")
    done = subprocess.run(
        [*PROGRAM, "suggest", *asked(tiny, *more, "--", *BATCH)],
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["best"]["provenance"] == "measured"
    assert found["best"]["guard"]["verdict"] == "not_checked"
    settings = found["best"]["settings"]
    assert found["launch"]["argv"] == [
        "torchrun", "--standalone", "--nproc-per-node", "2", str(SCRIPTS / "plain.py"),
        "--micro", str(settings["micro_batch_size"]),
        "--accumulation", str(settings["gradient_accumulation_steps"]),
    ]  # fmt: skip
    assert "{sharding} is used nowhere" in json.dumps(found["dead_knobs"])
