"""Elements, escaped."""

from markupsafe import Markup

from api.pages.charts.svg import element, number, path, percent, shown, text


def test_children_and_values_are_escaped() -> None:
    made = element("text", "<b>&", title="\"'><")
    assert made == '<text title="&#34;&#39;&gt;&lt;">&lt;b&gt;&amp;</text>'


def test_markup_is_not_escaped_twice() -> None:
    assert element("g", element("text", "&")) == "<g><text>&amp;</text></g>"
    assert isinstance(element("g"), Markup)


def test_names_of_attributes() -> None:
    made = element("line", class_="a", text_anchor="end", viewBox="0 0 1 1", fill=None)
    assert made == '<line class="a" text-anchor="end" viewBox="0 0 1 1"/>'


def test_only_elements_without_children_close_themselves() -> None:
    assert element("g") == "<g/>"
    assert element("span", "") == "<span></span>"


def test_what_xml_forbids_is_replaced() -> None:
    assert shown("a\x00\x1b\ud800\ufffeb\n") == "a\ufffd\ufffd\ufffd\ufffdb\n"


def test_coordinates_are_short() -> None:
    assert [number(x) for x in (0.0, -0.001, 12.0, 12.345, 1e-9)] == ["0", "0", "12", "12.35", "0"]
    assert percent(0.34251) == "34.25%"
    assert text("a", 0, 1.23456) == '<text x="0" y="1.23">a</text>'


def test_a_path_runs_from_0_to_1000() -> None:
    assert path([(0, 10.0), (0.5, 20.0)], "c") == '<path d="M0 10L500 20" class="c"/>'
