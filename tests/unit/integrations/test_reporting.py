"""``report_step`` in scripts without torch, as ranks of a probe and on their own."""

import json
import os
import subprocess
import sys

import pytest

from tuner.integrations import PLAN, STEPS
from workers.measuring.records import BadRecord, RankRecord, read_records

PLANNED = {
    "accumulation": 2,
    "warmup_steps": 2,
    "measured_steps": 4,
    "minimum_steps": 1,
    "time_budget_s": 100.0,
}
REPORTS = """
from tuner.integrations import in_probe, report_step
for step in range(20):
    report_step(loss=1.0 / (step + 1), sequences=8)
print("came to its end", in_probe())
"""


@pytest.fixture
def ranks(tmp_path):
    """``ranks(text, count)``: the script as so many ranks of a probe in ``tmp_path``, at once."""
    (tmp_path / PLAN).write_text(json.dumps(PLANNED))

    def run(text, count=1):
        (tmp_path / "script.py").write_text(text)
        place = {"TUNER_PROBE": str(tmp_path), "WORLD_SIZE": str(count)}
        started = [start(tmp_path, {**place, "RANK": str(rank)}) for rank in range(count)]
        return [ended(process) for process in started]

    return run


def start(folder, variables):
    return subprocess.Popen(
        [sys.executable, str(folder / "script.py")],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process):
    said, errors = process.communicate(timeout=240)
    return subprocess.CompletedProcess(process.args, process.returncode, said, errors)


def records(folder, count=1):
    found = read_records(folder, count)
    assert not any(isinstance(one, BadRecord) for one in found), found
    return [one for one in found if isinstance(one, RankRecord)]


def test_without_a_probe_nothing_happens(tmp_path):
    (tmp_path / "script.py").write_text(REPORTS)
    done = ended(start(tmp_path, {}))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "came to its end False\n"
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]


def test_only_the_standard_library_is_imported():
    ours = "import sys; before = set(sys.modules); import tuner.integrations\n"
    seen = "print(*{name.split('.')[0] for name in set(sys.modules) - before})"
    done = subprocess.run([sys.executable, "-c", ours + seen], capture_output=True, text=True)
    assert set(done.stdout.split()) - set(sys.stdlib_module_names) == {"tuner"}, done


def test_all_ranks_end_after_the_same_steps(ranks, tmp_path):
    done = ranks(REPORTS, 3)
    assert [(one.returncode, one.stdout, one.stderr) for one in done] == [(0, "", "")] * 3
    assert json.loads((tmp_path / STEPS).read_text()) == {"steps": 6}
    for record in records(tmp_path, 3):
        assert record.outcome == "ok"
        assert len(record.step_times_s[2]) == 4
        assert record.losses == tuple(1.0 / (step + 1) for step in range(6))
        assert record.sequences == 8
        assert 2**20 < record.memory.allocated_bytes < 2**30
        assert record.hardware["memory"] == "peak resident set of the process"
        assert record.versions["torch"]


@pytest.mark.parametrize(
    ("ending", "outcome", "error"),
    [
        ("raise ValueError('no such file')", "crashed", "ValueError: no such file"),
        ("raise MemoryError", "host_oom", "MemoryError"),
        ("pass", "crashed", "ended after 1 reported steps of 3"),
        ("try:\n    raise MemoryError\nexcept MemoryError:\n    raise KeyError", "host_oom", "Key"),
    ],
)
def test_a_script_that_fails_says_so(ranks, tmp_path, ending, outcome, error):
    ranks(f"from tuner.integrations import report_step\nreport_step()\n{ending}\n")
    (record,) = records(tmp_path)
    assert record.outcome == outcome
    assert error in record.error


def test_processes_of_a_rank_are_no_ranks(ranks, tmp_path):
    child = "subprocess.run([sys.executable, '-c', 'import tuner.integrations'], check=True)"
    steps = REPORTS.replace("sequences=8", "sequences=8 if step != 3 else 5")
    ranks(f"import subprocess, sys\nimport tuner.integrations\n{child}\n{steps}")
    (record,) = records(tmp_path)
    assert (record.outcome, record.sequences) == ("ok", 8)  # one short step is not taken for all
    ranks(REPORTS.replace("1.0 / (step + 1)", "float('nan')"))
    assert records(tmp_path)[0].outcome == "non_finite"


FORKS = """
import os, sys
from tuner.integrations import report_step
report_step(sequences=8)
if os.fork() == 0:
    {ends}
os.wait()
os._exit(0)  # leaves no record of its own
"""


@pytest.mark.parametrize("ends", ["sys.exit(0)", "raise ValueError('not a rank')"])
def test_a_fork_of_a_rank_leaves_no_record(ranks, tmp_path, ends):
    ranks(FORKS.format(ends=ends))
    assert not (tmp_path / "rank-00000.json").exists()
