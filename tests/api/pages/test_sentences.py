"""Sentences with probes as links."""

from api.pages.sentences import linked, sentence


def test_probes_of_the_study_are_links_and_others_are_not() -> None:
    found = linked("faster (probe #3 against #12, #9).", "st-1", {3, 12})
    assert found == (
        'faster (probe <a href="/studies/st-1/probes/3">#3</a> against '
        '<a href="/studies/st-1/probes/12">#12</a>, #9).'
    )


def test_markup_is_text() -> None:
    found = linked("<b>#3</b> & \"'", "st-1", {3})
    assert found == ('&lt;b&gt;<a href="/studies/st-1/probes/3">#3</a>&lt;/b&gt; &amp; &#34;&#39;')


def test_settings_can_be_wrapped() -> None:
    assert linked("sharding=ddp,tp_size=2 takes 1,201 s", "st-1", ()) == (
        "sharding=ddp, tp_size=2 takes 1,201 s"
    )


def test_numbers_too_long_for_a_probe_are_text() -> None:
    number = "9" * 30
    assert f"#{number}"[:19] in linked(f"#{number}", "st-1", ())


def test_what_turns_the_direction_of_text_is_shown_and_not_obeyed() -> None:
    found = linked("crashed, \u202eevil (probe #3)", "st-1", {3})
    assert found.startswith("crashed, \ufffdevil (probe <a")


def test_what_stands_between_backticks_is_code() -> None:
    found = linked("`tp_size=2` saves <b>, and `<i> #3`", "st-1", ())
    assert found == "<code>tp_size=2</code> saves &lt;b&gt;, and `&lt;i&gt; #3`"


def test_a_sentence_begins_with_a_capital() -> None:
    assert sentence("nothing fits: a=1,b=2") == "Nothing fits: a=1, b=2"
    assert sentence("") == ""
