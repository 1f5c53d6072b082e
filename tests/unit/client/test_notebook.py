"""An answer in a notebook: as a table, and as rows for a data frame."""

from dataclasses import replace
from html.parser import HTMLParser

import pytest

from tuner.client.answered import answered_of


class Cells(HTMLParser):
    """The cells of a table, and the tags that are there."""

    def __init__(self, text):
        super().__init__()
        self.rows, self.tags = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag == "tr":
            self.rows.append([])

    def handle_data(self, data):
        if self.tags[-1] in ("td", "th"):
            self.rows[-1].append(data)


@pytest.fixture
def answer(answered):
    return answered_of(answered).require()


def test_a_notebook_shows_the_best_first_with_provenance(answer):
    shown = Cells(answer._repr_html_())
    heads, best, second = shown.rows
    assert heads == ["settings", "speed", "step", "needs", "of", "from"]
    assert best[0].startswith("sharding=full_shard, micro_batch_size=4")
    assert "tokens/s per rank (" in best[1]
    assert (best[2], best[5]) == ("0.1 s", "measured")
    assert second[0].startswith("sharding=ddp")
    odd = replace(answer, explanation=("<script>alert(1)</script>",))
    assert "script" not in Cells(odd._repr_html_()).tags


def test_rows_have_plain_values_with_intervals(answer):
    rows = answer.to_dicts()
    assert [row["sharding"] for row in rows] == ["full_shard", "ddp"]
    assert len({tuple(row) for row in rows}) == 1, "all have the same columns"
    first = rows[0]
    assert first["step_time_s"] == pytest.approx(0.1, rel=0.01)
    assert first["tokens_per_s_per_gpu_low"] <= first["tokens_per_s_per_gpu"]
    assert first["needed_gib_high"] >= first["needed_gib"]
    assert all(isinstance(one, str | int | float | None) for one in first.values())
