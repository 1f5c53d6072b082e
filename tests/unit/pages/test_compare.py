"""``/compare``: studies side by side."""

import pytest

from api.answers import Answers
from api.pages.listing import comparison_of, read_ids
from tests.unit.api.studies import MEASURED, WORKLOAD, ok, probe, question_of
from tuner.core.study import Limits
from tuner.core.words import share_text
from tuner.errors import UsageError

A, B, C = "st-00000000000a", "st-00000000000b", "st-00000000000c"
HOSTILE = ("<img src=x onerror=alert(1)>", "\N{HEBREW LETTER ALEF}" * 40, "m" * 200, "\N{LLAMA}")


def test_ids_are_given_in_either_way():
    for values, ids in (
        ([""], []),
        ([f"{A},{B}"], [A, B]),
        ([A, B], [A, B]),
        ([f"{B}, {A}", A, ",,"], [B, A]),
    ):
        assert read_ids(values) == ids
    for wrong in (["x"], ["<b>"], [f"{A}{B}"], [f"st-00000000000{n}" for n in "01234"]):
        with pytest.raises(UsageError) as error:
            read_ids(wrong)
        assert error.value.field == "ids"


def compared(store, *ids):
    answers, statuses = Answers(store), store.statuses(ids)
    return comparison_of([answers.whole(statuses[one]) for one in ids])


def test_what_differs_is_told_and_speeds_are_drawn_to_one_scale(store):
    ids = []
    for batch, seconds in ((16, 1.0), (32, 4.0)):
        workload = {**WORKLOAD, "global_batch_size": batch}
        study = store.ask(question_of({**MEASURED, "workload": workload}), Limits())
        probe(store, study.id, ok(seconds, 1))
        ids.append(study.id)
    pair = compared(store, *ids)
    assert len(pair.sections) == 4
    question = pair.sections[1]
    assert [row.name for row, _, _ in question.rows if row.differs] == ["global batch"]
    assert question.differing == 1
    assert "global batch" in pair.in_short
    assert pair.further.rows == ()
    rows = [row for section in pair.sections for row in section.rows]
    ((_, shares, ratios),) = (row for row in rows if row[0].name.startswith("tokens/s"))
    assert max(share for share in shares if share) == 1.0
    assert ratios == ("", "0.5x")
    ((needed, shares, _),) = (row for row in rows if row[0].name == "memory needed")
    for cell, share in zip(needed.cells, shares, strict=True):
        assert f"{share_text(share)} of the limit" in cell.text
    assert len(pair.chart.fronts) == 2
    assert all(pair.chart.fronts)
    same = compared(store, ids[0], ids[0])
    assert not any(section.differing for section in same.sections)


def test_studies_stand_side_by_side_or_can_be_chosen(page, store):
    ids = []
    for number, name in enumerate(HOSTILE):
        workload = {**WORKLOAD, "model_name": name, "global_batch_size": 16 + 16 * number}
        ids.append(store.ask(question_of({**MEASURED, "workload": workload}), Limits()).id)
    for count in (2, 4):
        table = page(f"/compare?ids={','.join(ids[:count])}").find("table")[0]
        heads = table.find("th", scope="col")
        assert [h.one("a")["href"] for h in heads] == [f"/studies/{one}" for one in ids[:count]]
        for head, name in zip(heads, HOSTILE, strict=False):
            shown = head.find("bdi")[0]
            assert shown.get("title", shown.text) == name
        rows = [row for row in table.find("tr") if row.find("td") and row.find("th", scope="row")]
        assert all(len(row.find("td")) == count for row in rows)
        # What differs is marked, and not by colour alone.
        assert all("differs: " in row.text for row in table.find("tr", class_="differs"))
        assert not any("differs" in row.text for row in table.find("tr", class_="same"))
    for count in (0, 1):
        boxes = page(f"/compare?ids={','.join(ids[:count])}").by_id("compare")
        found = boxes.find("input", type="checkbox", name="ids")
        assert sorted(box["value"] for box in found) == sorted(ids)
        assert [box["value"] for box in found if "checked" in box.attributes] == ids[:count]
    searched = page(f"/compare?ids={ids[0]}&query=%F0%9F%A6%99").by_id("compare")
    boxes = searched.find("input", type="checkbox", name="ids")
    assert [box["value"] for box in boxes] == [ids[0], ids[3]], "what was ticked stays"
    page("/compare?ids=x", 422)
    page("/compare?ids=st-000000000000,st-000000000001", 404)
