"""What is known of a study as charts."""

from dataclasses import replace

from api.pages.charts import memory_bar
from api.pages.charts.memory import OUTSIDE
from api.pages.charts.scatter import short_words
from api.pages.render import settings_path
from tests.unit.pages.html import Element, read_part
from tests.unit.pages.made import GIB, crashed, ok, oom, question, shown, study
from tuner.core.configuration import Settings, Sharding
from tuner.core.study import Terms
from tuner.core.words import describe

FOUND = [ok(2.0, 1, 20 * GIB), oom(), ok(1.0, 1, 30 * GIB), crashed()]


def part(name: str, **more: object) -> Element:
    return read_part(shown(study(question(), FOUND, **more)).parts[name])


def words(element: Element) -> str:
    return " ".join(element.text.split())


def test_every_probed_settings_is_a_mark_that_leads_to_its_evidence() -> None:
    drawn = part("scatter").one(class_="chart")
    links = [link["href"] for link in drawn.find("a")]
    for probe in ("?probe=1", "?probe=2", "?probe=3"):
        assert probe in links
    answer = next(link for link in drawn.find("a") if link["href"] == "?probe=3")
    best = study(question(), FOUND).probes[2].request.settings
    assert short_words(describe(best))[:60] in words(answer)
    assert "memory, GiB" in words(drawn)
    assert "tokens/s per GPU" in words(drawn)


def test_what_was_not_probed_leads_to_what_is_predicted() -> None:
    rows = part("scatter", terms=Terms(max_probes=9)).one("tbody").find("tr")
    paths = [row.one("a")["href"] for row in rows]
    assert (rows[0]["class"], paths[0]) == ("is-best", "/studies/st-0123456789ab/probes/3")
    assert all(p.startswith("/studies/st-0123456789ab/settings?sharding=") for p in paths[1:])


def test_the_best_so_far_has_a_mark_for_each_probe() -> None:
    drawn = part("progress")
    assert "best so far" in words(drawn)
    assert "tokens/s per GPU" in words(drawn)


def test_knobs_are_named_in_words_and_values_as_they_are_written() -> None:
    drawn = words(part("knobs"))
    for text in ("micro batch size", "activation checkpointing", "full_shard", "memory, GiB"):
        assert text in drawn, text


def test_memory_by_category_with_what_lies_outside_of_the_allocator() -> None:
    drawn = words(part("memory"))
    for text in ("parameters", "optimizer", OUTSIDE, "limit 76.0 GiB", "headroom"):
        assert text in drawn, text


def test_a_limit_of_ones_own_has_no_headroom() -> None:
    made = replace(study(question(), FOUND), terms=Terms(memory_limit_bytes=40 * GIB))
    drawn = words(read_part(memory_bar({"x": 1.0 * GIB}, label="", study=made, prefix="a")))
    assert "limit 40.0 GiB" in drawn
    assert "headroom" not in drawn


def test_categories_that_are_not_known_are_drawn_too() -> None:
    made = study(question(), FOUND)
    sizes = {"something_new": 2.0 * GIB, "parameters": 1.0 * GIB}
    drawn = words(read_part(memory_bar(sizes, label="l", study=made, prefix="a")))
    assert drawn.index("parameters") < drawn.index("something new")


def test_short_words_leave_out_what_follows() -> None:
    settings = Settings(
        sharding=Sharding.FULL_SHARD,
        micro_batch_size=4,
        gradient_accumulation_steps=8,
        sync_each_batch=False,
    )
    assert (
        short_words(describe(settings)) == "full_shard, micro_batch_size=4, sync_each_batch=false"
    )
    path = settings_path("st-1", settings)
    assert path.startswith("/studies/st-1/settings?sharding=full_shard&tp_size=1&")
    assert "sync_each_batch=false" in path
