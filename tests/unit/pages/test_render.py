"""The environment of templates: what it escapes, and figures as they are written."""

from datetime import UTC, datetime

from api.pages import render
from api.pages.render import breakable, linked, sentence
from tests.unit.pages.html import read_part


def shown(template, **values):
    return render.environment().from_string(template).render(**values)


def test_everything_is_escaped():
    assert shown("{{ a }}", a="<b>\"'&") == "&lt;b&gt;&#34;&#39;&amp;"


def test_figures_and_moments_as_they_are_written():
    for template, expected in (
        ("{{ 61.25|gib }} {{ 0.5|gib }} {{ none|gib }}", "61.2 GiB 512 MiB unknown"),
        ("{{ 9412.4|per_s }} {{ none|per_s }}", "9,412 unknown"),
        ("{{ 0.4281|seconds }} {{ none|seconds }}", "0.428 s unknown"),
        ("{{ 65|duration }} {{ 0.125|percent }} {{ 4096|commas }}", "1:05 min 12% 4,096"),
        ("{{ 'oom'|outcome }}, {{ 'stopped_early'|outcome }}", "out of memory, stopped early"),
        ("{{ none|moment }} {{ ''|ago }}", "unknown unknown"),
        ("{{ '2026-11-21T06:00:00Z'|between('2026-11-21T06:01:05Z') }}", "1:05 min"),
        ("{{ '2026-11-21T06:00:00Z'|between('2026-11-21T05:59:59Z') }}", "0.0 s"),
    ):
        assert shown(template) == expected
    time = read_part(render.moment("2026-11-21T06:10:00.000Z")).one("time")
    assert (time["datetime"], time.text) == ("2026-11-21T06:10:00.000Z", "2026-11-21 06:10 UTC")
    for iso, expected in (
        ("2026-11-21T11:59:30Z", "just now"),
        ("2026-11-21T12:00:30Z", "just now"),
        ("2026-11-21T11:58:00Z", "2 minutes ago"),
        ("2026-11-21T10:30:00Z", "1 hour ago"),
        ("2026-11-18T10:30:00Z", "3 days ago"),
    ):
        found = read_part(render.ago(iso, datetime(2026, 11, 21, 12, tzinfo=UTC))).one("time")
        assert (found["datetime"], found.text) == (iso, expected)


def test_sentences_are_text_in_which_probes_of_the_study_are_links():
    for text, probes, expected in (
        ("faster (probe #3 against #12, #9).", {3, 12},
         'faster (probe <a href="/studies/st-1/probes/3">#3</a> against '
         '<a href="/studies/st-1/probes/12">#12</a>, #9).'),
        ("<b>#3</b> & \"'", {3},
         '&lt;b&gt;<a href="/studies/st-1/probes/3">#3</a>&lt;/b&gt; &amp; &#34;&#39;'),
        ("sharding=ddp,tp_size=2 takes 1,201 s", (), "sharding=ddp, tp_size=2 takes 1,201 s"),
        ("#" + "9" * 30, (), "#" + "9" * 30),
        ("crashed, \u202eevil", (), "crashed, \ufffdevil"),
        ("`tp_size=2` saves <b>, and `<i> #3`", (),
         "<code>tp_size=2</code> saves &lt;b&gt;, and `&lt;i&gt; #3`"),
    ):  # fmt: skip
        assert linked(text, "st-1", probes) == expected
    assert sentence("nothing fits: a=1,b=2") == "Nothing fits: a=1, b=2"
    assert sentence("") == ""
    assert breakable("tp_size=2 <b>") == "tp_<wbr>size=<wbr>2 &lt;b&gt;"
