"""Shapes of marks."""

from api.pages.charts import symbols
from tests.api.pages.charts.examples import parsed
from tuner.quantity import Provenance

NAMES = (*Provenance, symbols.OOM, symbols.FAILED, symbols.BEYOND, symbols.BEST)


def test_no_two_look_alike_without_colour() -> None:
    drawn = [parsed(symbols.symbol("p", name)) for name in NAMES]
    looks = {(g[0].get("d"), g[0].get("class")) for g in drawn}
    assert len(looks) == len(NAMES)


def test_what_ran_is_filled_and_what_did_not_is_hollow() -> None:
    filled = {n for n in Provenance if "chart-solid" in symbols.symbol("p", n)}
    assert filled == {Provenance.MEASURED, Provenance.EMULATED}


def test_a_target_to_point_at_keeps_its_size() -> None:
    circle, shape = parsed(symbols.symbol("p", "measured", size=0.7, target_px=12.0))
    assert circle.get("r") == "12"
    assert shape.get("transform") == "scale(0.7)"
    assert len(parsed(symbols.symbol("p", "measured"))) == 1
