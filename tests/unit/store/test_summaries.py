"""Summaries in the store: one of each study, never one that is made of less than is kept."""

from sqlalchemy import text

LINE = {"state": "running", "words": "none of <b>these</b> \u202e\U0001f600", "tokens": 9412.1}


def test_a_newer_summary_takes_the_place_and_an_older_one_does_not(store, study):
    assert store.summaries([]) == store.summaries([study.id]) == {}
    newer, other = {**LINE, "probes": 9}, {**LINE, "state": "done"}
    steps = [(LINE, 7, True, LINE), (LINE, 7, False, LINE), (newer, 8, True, newer),
             (LINE, 7, False, newer), (other, 8, True, other), (other, 9, True, other)]  # fmt: skip
    for content, event, written, kept in steps:
        assert store.keep_summary(study.id, content, event) is written
        assert store.summaries([study.id, "st-none"])[study.id].content == kept
    last = store.summaries([study.id])[study.id]
    assert last.newest_event == 9


def test_summaries_go_with_their_study(store, study):
    assert not store.keep_summary("st-gone", LINE, 1)
    assert store.keep_summary(study.id, LINE, 1)
    with store.transactions.write() as session:
        session.execute(text("DELETE FROM studies"))
    assert store.summaries([study.id, "st-gone"]) == {}
