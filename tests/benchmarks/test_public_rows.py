import pytest


@pytest.fixture
def module(benchmark):
    return benchmark("public_rows")


def test_the_rows_are_those_of_the_table(module) -> None:
    issue = module.issue_rows()
    assert [row.measured_gib for row in issue] == [79, None, 80, 66, 55, None, 55]
    assert {row.headroom for row in issue} == {0}
    assert [row.cluster.world_size for row in module.dlrover_rows()] == [8, 16, 32, 64]
    assert len(module.torchtitan_rows()) == 4


def test_fsdp1_is_what_the_stated_versions_say(module) -> None:
    stacks = {row.stack.fsdp_version for row in (*module.issue_rows(), *module.dlrover_rows())}
    assert stacks == {1}


def test_differences_are_the_first_row_less_the_other(module) -> None:
    rows = [{"dry_run": {"gib": 66.0}}, {"dry_run": {"gib": 80.0}}]
    assert module.difference(rows, "dry_run", 0, 1) == -14


def test_the_slope_is_between_the_fewest_and_the_most_gpus(module) -> None:
    rows = [
        {"dry_run": {"gib": gib}, "measured_gib": measured}
        for gib, measured in ((39.0, 38.0), (0.0, 99.0), (30.0, 30.0))
    ]
    assert module.slope_error(rows, "dry_run") == pytest.approx(9 / 8 - 1)


def test_fewer_facts_of_dlrovers_script_are_told_apart(module) -> None:
    stated = module.dlrover_stated()
    scripts = {name: rows[0].script.as_dict() for name, rows in stated.items()}
    assert not any(scripts[module.NOTHING_STATED].values())
    assert scripts["use_cache"] == {"use_cache": True, "keeps_outputs": False}
    assert scripts["keeps_outputs"] == {"use_cache": False, "keeps_outputs": True}
    assert stated["both, in transformers 4.38"] == module.dlrover_rows()
    assert {rows[0].stack.fsdp_version for rows in stated.values()} == {1}


def test_arithmetic_of_dlrover_misses_without_and_not_with_the_facts(module) -> None:
    peaks = {
        name: [module._predict(row, None).allocated_bytes.value / 2**30 for row in rows]
        for name, rows in module.dlrover_stated().items()
    }
    *_, everything = peaks.values()
    measured = [row.measured_gib for row in module.dlrover_rows()]
    assert everything == pytest.approx(measured, rel=0.08)
    for plain, seen in zip(peaks[module.NOTHING_STATED], measured, strict=True):
        assert plain < 0.6 * seen


def test_lines_hold_every_row_of_both_ways(module) -> None:
    rows = [
        {"stated": stated, "dry_run": {"gib": gib, "error": error}, "arithmetic": None}
        for stated, error in (("nothing", -0.5), ("all", 0.01))
        for gib in (4.0, 3.0, 2.0, 1.0)
    ]
    first, *lines = module.stated_lines(rows)
    assert first["stated"] == "measured"
    assert first["8 GPUs"] == 38.668
    assert [(line["stated"], line["by"]) for line in lines] == [
        ("nothing", "dry_run"), ("nothing", "arithmetic"), ("all", "dry_run"), ("all", "arithmetic")
    ]  # fmt: skip
    assert [lines[0][f"{gpus} GPUs"] for gpus in (8, 16, 32, 64)] == [4, 3, 2, 1]
    assert lines[0]["largest_error"] == 0.5
    assert lines[1]["64 GPUs"] is lines[1]["largest_error"] is None
