import copy
import json
import subprocess

from tuner.core.measurement import Collective, Outcome
from workers.measuring.records import (
    BadRecord,
    RankRecord,
    log_tail,
    make_folder,
    parse_record,
    read_records,
    remove_leftovers,
)

GOOD = {
    "format": 2, "rank": 1, "outcome": "ok", "phase": "finish", "error": None,
    "ended_at": 1700000000.5, "oom": None, "memory": {"allocated_bytes": 100,
    "allocated_low_bytes": 90, "reserved_bytes": 120, "device_bytes": 500, "overhead_bytes": 7,
    "by_phase": {"forward": 100, "optimizer": 80}, "by_category": {"parameters": 40},
    "allocation_retries": 0}, "step_times_s": {"1": [0.1, 0.2], "2": [0.3, 0.4]},
    "collectives": [{"op": "all_gather", "axis": "dp_shard", "phase": "forward", "count": 3,
    "bytes": 99}], "tracked_accumulation": 2, "reducing_micro_batches": 2, "losses": [2.5, 2.25],
    "gradient_norms": [1.5], "optimizer_steps": 9, "expected_optimizer_steps": 9,
    "versions": {"torch": "2.13.0"}, "hardware": {"device": "cpu", "threads": 1}, "emulation": None,
}  # fmt: skip
SEEN = {"op": "all_gather", "axis": "tp", "phase": "forward", "count": 3, "bytes": 99}
ALONE = {
    "phase_times_s": {"2": [{"forward": 0.1, "backward": 0.2}]},
    "copies_s": {"2": {"forward": 0.01}},
    "collectives": {"2": [{**SEEN, "overlap": "exposed"}]},
}


def parsed(**changes):
    return parse_record(json.dumps({**GOOD, **changes}), 1)


def test_a_good_record():
    record = parsed()
    assert isinstance(record, RankRecord)
    assert record.outcome is Outcome.OK
    assert record.memory.allocated_bytes == 100
    assert record.step_times_s == {1: (0.1, 0.2), 2: (0.3, 0.4)}
    assert record.collectives == (
        Collective(op="all_gather", axis="dp_shard", phase="forward", count=3, bytes=99),
    )


def test_what_a_rank_alone_noted():
    record = parsed(emulation=ALONE)
    assert isinstance(record, RankRecord)
    assert record.emulation.phase_times_s == {2: ({"forward": 0.1, "backward": 0.2},)}
    assert record.emulation.copies_s == {2: {"forward": 0.01}}
    assert record.emulation.collectives == {2: (Collective(**SEEN, overlap="exposed"),)}


def test_records_of_another_form():
    for changes in [
        {"format": 1},
        {"rank": 0},
        {"rank": True},
        {"outcome": "timeout"},
        {"outcome": "fine"},
        {"outcome": "oom"},
        {"memory": None},
        {"outcome": "stopped_early", "memory": None},
        {"memory": {**GOOD["memory"], "device_bytes": -1}},
        {"memory": {**GOOD["memory"], "by_phase": [1]}},
        {"step_times_s": {"0": [1.0]}},
        {"step_times_s": {"one": [1.0]}},
        {"step_times_s": {"1": []}},
        {"step_times_s": {"1": [float("nan")]}},
        {"step_times_s": {"1": ["1"]}},
        {"collectives": [{"op": "all_gather"}]},
        {"losses": None},
        {"optimizer_steps": 1.5},
        {"ended_at": None},
        {"versions": []},
        {"error": "text"},
        {"emulation": {}},
        {"emulation": {**ALONE, "copies_s": {}}},
        {"emulation": {**ALONE, "copies_s": {"2": {"forward": -0.1}}}},
        {"emulation": {**ALONE, "phase_times_s": {"2": [{"forward": float("nan")}]}}},
    ]:
        bad = parsed(**changes)
        assert isinstance(bad, BadRecord)
        assert not bad.missing


def test_a_missing_field():
    for name in sorted(GOOD):
        values = copy.deepcopy(GOOD)
        del values[name]
        assert isinstance(parse_record(json.dumps(values), 1), BadRecord)


def test_text_that_is_no_record():
    for text in ["", "null", "[]", "3", json.dumps(GOOD)[:-20], "[" * 100_000]:
        assert isinstance(parse_record(text, 1), BadRecord)


def test_reading_those_of_all_ranks(tmp_path):
    (tmp_path / "rank-00001.json").write_text(json.dumps(GOOD))
    (tmp_path / "rank-00002.json").write_bytes(b"\xff\xfe")
    missing, good, binary = read_records(tmp_path, 3)
    assert isinstance(good, RankRecord)
    assert isinstance(missing, BadRecord)
    assert missing.missing
    assert isinstance(binary, BadRecord)
    assert not binary.missing


def test_colors_and_control_characters_are_removed(tmp_path):
    log = tmp_path / "rank.log"
    log.write_bytes(b"\x1b[31;1mred\x1b[0m \x1b]0;title\x07plain\x00\x08\tkept\r\n1%\r2%")
    assert log_tail(log) == "red plain\tkept\n1%\n2%"


def ended_process():
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_folders_of_processes_that_are_no_more_are_removed(tmp_path):
    mine = make_folder(tmp_path, "1")
    left = tmp_path / f"{ended_process()}-1-abc"
    left.mkdir()
    (left / "spec.json").touch()
    kept = tmp_path / f"kept-{left.name}"  # a result that the store did not take
    kept.mkdir()
    (tmp_path / "not-ours-at-all").mkdir()
    remove_leftovers(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([mine, kept, tmp_path / "not-ours-at-all"])
    remove_leftovers(tmp_path / "nowhere")
