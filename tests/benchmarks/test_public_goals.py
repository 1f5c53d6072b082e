import pytest

pytestmark = pytest.mark.long

MEASURED = [79, None, 80, 66, 55, None, 55]
"""Issue 29425's, GiB; two ran out of memory."""


@pytest.fixture
def module(benchmark):
    return benchmark("public_goals")


def told(gib, fits, measured):
    return {"gib": gib, "verdict_right": fits is (measured is not None), "inside": True}


def issue(changed=None):
    rows = []
    for place, measured in enumerate(MEASURED):
        gib = (changed or {}).get(place, measured or 128)
        of = told(gib, measured is not None, measured)
        rows.append({"measured_gib": measured, "dry_run": dict(of), "arithmetic": dict(of)})
    return rows


def missed(goals):
    return [goal.name for goal in goals if not goal.met]


def test_what_was_measured_meets_all_goals(module) -> None:
    assert missed(module.issue_goals(issue())) == []


def test_one_wrong_verdict_is_seen(module) -> None:
    rows = issue()
    rows[1]["dry_run"]["verdict_right"] = False
    assert missed(module.issue_goals(rows)) == ["29425, dry run: verdicts right of 7"]


def test_a_row_without_a_dry_run_is_unknown_and_misses(module) -> None:
    rows = issue()
    rows[3]["dry_run"] = None
    found = missed(module.issue_goals(rows))
    assert "29425: share answered unknown" in found
    assert "29425, dry run: verdicts right of 7" in found
    assert "29425, dry run: Mixtral, 8-bit AdamW: GiB off the measured -14" in found


def test_intervals_count_rows_that_were_measured(module) -> None:
    rows = issue()
    for place in (0, 1):  # the second ran out of memory: no figure that could lie inside
        rows[place]["dry_run"]["inside"] = False
    dry, arithmetic = module.interval_goals(rows)
    assert dry.value == pytest.approx(4 / 5)
    assert arithmetic.value == 1
    rows[2]["dry_run"]["inside"] = False
    assert missed(module.interval_goals(rows)) == [dry.name]
