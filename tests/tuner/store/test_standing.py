"""Where studies stand, in one query."""

from typing import Any

from sqlalchemy import event

from tuner.store import Store
from tuner.store.standing import Standings
from tuner.study import StudyState, Terms


def test_a_study_stands_where_the_store_says(store: Store, question: Any) -> None:
    study = store.ask(question, Terms(max_probes=7))
    found = Standings(store.transactions).one(study.id)
    assert found is not None
    assert (found.id, found.identity) == (study.id, question.identity)
    assert (found.state, found.reason, found.revision) == (StudyState.QUEUED, "", study.revision)
    assert found.terms == Terms(max_probes=7).as_dict()
    assert found.asked_at == study.asked_at
    assert found.newest_event == store.events(study.id)[-1].id


def test_everything_that_happens_moves_it(store: Store, question: Any) -> None:
    standings, study = Standings(store.transactions), store.ask(question, Terms())
    before = standings.one(study.id)
    store.move(study.id, StudyState.CANCELLED, "enough")
    after = standings.one(study.id)
    assert before is not None
    assert after is not None
    assert (after.state, after.reason) == (StudyState.CANCELLED, "enough")
    assert after.newest_event > before.newest_event


def test_what_does_not_exist_is_left_out(store: Store, question: Any) -> None:
    study = store.ask(question, Terms())
    standings = Standings(store.transactions)
    assert list(standings.of([study.id, "st-000000000000"])) == [study.id]
    assert standings.one("st-000000000000") is None
    assert standings.of([]) == {}


def test_any_number_is_one_query(store: Store, question: Any) -> None:
    study, statements = store.ask(question, Terms()), []
    engine = store.transactions.engine

    def note(connection: object, cursor: object, statement: str, *rest: object) -> None:
        statements.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    Standings(store.transactions).of([study.id, *(f"st-{i:012d}" for i in range(300))])
    event.remove(engine, "before_cursor_execute", note)
    assert sum("SELECT" in statement for statement in statements) == 1
