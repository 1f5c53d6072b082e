"""Studies side by side."""

import pytest

from api.answers import Answers
from api.pages.compare import Comparison, comparison_of, read_ids
from tests.unit.api.studies import MEASURED, PREDICTED, WORKLOAD, ok, probe, question_of
from tuner.core.study import Terms
from tuner.errors import UsageError
from tuner.store import Store

A, B, C = "st-00000000000a", "st-00000000000b", "st-00000000000c"


@pytest.mark.parametrize(
    ("values", "ids"),
    [
        ([], []),
        ([""], []),
        ([A], [A]),
        ([f"{A},{B}"], [A, B]),
        ([A, B], [A, B]),
        ([f"{B}, {A}", A], [B, A]),
        ([f",{A},,"], [A]),
    ],
)
def test_ids_are_given_in_either_way(values: list[str], ids: list[str]) -> None:
    assert read_ids(values) == ids


@pytest.mark.parametrize(
    "values", [["x"], ["<b>"], [f"{A}{B}"], [f"st-00000000000{n}" for n in "01234"]]
)
def test_what_is_no_id_or_too_many_is_refused(values: list[str]) -> None:
    with pytest.raises(UsageError) as error:
        read_ids(values)
    assert error.value.field == "ids"


def _compared(store: Store, *ids: str) -> Comparison:
    answers, standings = Answers(store), store.statuses(ids)
    return comparison_of([answers.whole(standings[one]) for one in ids])


@pytest.fixture
def pair(store: Store) -> Comparison:
    """Two studies that differ in the batch and in what was measured."""
    ids = []
    for batch, seconds in ((16, 1.0), (32, 4.0)):
        workload = {**WORKLOAD, "global_batch_size": batch}
        study = store.ask(question_of({**MEASURED, "workload": workload}), Terms())
        probe(store, study.id, ok(seconds, 1))
        ids.append(study.id)
    return _compared(store, *ids)


def test_what_differs_is_told(pair: Comparison) -> None:
    titles = [section.title for section in pair.sections]
    assert titles == ["The answer", "The question", "The terms", "What it took"]
    question = pair.sections[1]
    assert [row.name for row in question.rows if row.differs] == ["global batch"]
    assert question.differing == 1
    assert pair.in_short == "They ask for different things in global batch."
    assert [column.letter for column in pair.columns] == ["A", "B"]
    assert all(column.words for column in pair.columns)
    assert pair.further.rows == ()


def test_speeds_are_drawn_to_one_scale(pair: Comparison) -> None:
    (speed,) = (
        row for section in pair.sections for row in section.rows if row.name.startswith("tokens/s")
    )
    shares = [entry.share for entry in speed.entries]
    assert max(share for share in shares if share) == 1.0
    assert speed.differs == (len({entry.text for entry in speed.entries}) > 1)


def test_the_same_study_asks_the_same(store: Store) -> None:
    one = store.ask(question_of(MEASURED), Terms())
    whole = Answers(store).whole(store.statuses([one.id])[one.id])
    found = comparison_of([whole, whole])
    assert not any(section.differing for section in found.sections)
    assert found.in_short == "They ask the same."


def test_studies_without_answers_and_of_other_models_are_compared(store: Store) -> None:
    model = {**WORKLOAD["model"], "hidden_size": 128}  # type: ignore[dict-item]
    ids = [
        store.ask(question_of(body), Terms()).id
        for body in (
            MEASURED,
            PREDICTED,
            {**PREDICTED, "workload": {**WORKLOAD, "model": model, "model_name": "<b>x</b>"}},
        )
    ]
    found = _compared(store, *ids)
    assert len(found.columns) == 3
    assert "model hidden_size" in [row.name for row in found.further.rows]
    assert all(row.differs for row in found.further.rows)
    assert all(len(row.entries) == 3 for section in found.sections for row in section.rows)
    assert not any(e.share for s in found.sections for row in s.rows for e in row.entries)


def test_knobs_are_known_by_their_names(pair: Comparison) -> None:
    knobs = {row.name for section in pair.sections for row in section.rows if row.is_knob}
    assert {"sharding", "micro_batch_size", "sync_each_batch"} <= knobs
    assert "global batch" not in knobs
