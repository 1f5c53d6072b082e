"""Templates: what they escape, and figures as they are written; and the files that pages load."""

from datetime import UTC, datetime
from hashlib import sha256

import pytest
from starlette.testclient import TestClient

from api.pages import render
from api.pages.render import FAVICON, FOR_EVER, asset_url, assets, breakable, linked, sentence
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
        ("{{ 'oom'|outcome }}, {{ 'host_oom'|outcome }}", "out of memory, host out of memory"),
        ("{{ 'stopped_early'|outcome }}, {{ 'running'|outcome }}", "stopped early, running"),
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


@pytest.fixture
def stranger(guarded):
    return TestClient(guarded, base_url="http://localhost", client=("192.0.2.1", 50000))


def test_each_file_is_served_and_may_be_kept(stranger):
    for name, asset in assets().items():
        answer = stranger.get(asset_url(name))
        assert (answer.status_code, answer.content) == (200, asset.content), name
        assert asset_url(name).split("/")[2] == sha256(asset.content).hexdigest()[:16]
        assert answer.headers["content-type"] == asset.media_type
        assert answer.headers["cache-control"] == FOR_EVER
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "set-cookie" not in answer.headers
    with pytest.raises(KeyError):
        asset_url("nothing.css")


def test_its_tag_saves_sending_it_again(stranger):
    address = asset_url("style.css")
    tag = stranger.get(address).headers["etag"]
    for known in (tag, f'W/{tag}, "other"'):
        answer = stranger.get(address, headers={"If-None-Match": known})
        assert (answer.status_code, answer.content) == (304, b"")
        assert answer.headers["cache-control"] == FOR_EVER
    assert stranger.get(address, headers={"If-None-Match": '"other"'}).status_code == 200
    head = stranger.head(address, headers={"Accept-Encoding": "identity"})
    assert (head.status_code, head.content) == (200, b"")
    assert int(head.headers["content-length"]) == len(assets()["style.css"].content)
    # As while two releases of the service answer side by side.
    old = stranger.get("/static/0000000000000000/style.css")
    assert old.content == assets()["style.css"].content
    assert old.headers["cache-control"] == "public, no-cache"
    assert stranger.get("/favicon.ico").content == assets()[FAVICON].content


def test_there_is_nothing_else(stranger):
    for path in ("/static/0/nothing.css", "/static/0/..%2frender.py", "/static/../render.py",
                 "/static/0/%2e%2e/render.py", "/static/0/__init__.py", "/static/0/",
                 "/static/0/style.css/", "/static/0/%00"):  # fmt: skip
        answer = stranger.get(path)
        assert answer.status_code in (400, 401, 404), path
        assert answer.headers["content-type"] == "application/problem+json"
