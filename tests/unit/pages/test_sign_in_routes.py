"""Signing in with a key, and out again."""

import logging
import re

import pytest
from sqlalchemy import func, select, text

from api.app import create_app
from api.settings import Settings
from tests.unit.api.browsers import Browser
from tests.unit.api.studies import PREDICTED, question_of
from tuner.core.study import Limits
from tuner.store.access import Keys
from tuner.store.tables import Scope, SessionRow

WRONG = f"tuner_{'0' * 16}_{'A' * 43}"


@pytest.fixture
def keys(store):
    return Keys(store.transactions)


@pytest.fixture
def key(keys):
    return keys.create("a", Scope.READ)[1]


@pytest.fixture
def app(store):
    """The service with such settings; keys are needed unless they say otherwise."""

    def make(**given):
        return create_app(store, Settings(_env_file=None, **{"require_keys": True, **given}))

    return make


@pytest.fixture
def browser(app):
    return Browser(app())


@pytest.fixture
def study_id(store):
    return store.ask(question_of(PREDICTED), Limits()).id


def count(store):
    with store.transactions.read() as session:
        return session.scalar(select(func.count()).select_from(SessionRow)) or 0


def test_who_signs_in_goes_on_to_where_they_wanted(browser, key):
    assert browser.get("/").headers["location"] == "/sign-in"
    sent = browser.get("/?query=a%20b&state=done")
    assert (sent.status_code, sent.headers["location"]) == (
        303,
        "/sign-in?next=/%3Fquery%3Da%2520b%26state%3Ddone",
    )
    form = browser.get(sent.headers["location"])
    onward = re.search(r'name="next" value="([^"]*)"', form.text)
    response = browser.sign_in(f"  {key}\n", next=onward[1].replace("&amp;", "&"))
    assert (response.status_code, response.headers["location"]) == (303, "/?query=a%20b&state=done")
    page = browser.get(response.headers["location"])
    assert page.status_code == 200
    assert 'action="/sign-out"' in page.text
    again = browser.get("/sign-in?next=/new")
    assert (again.status_code, again.headers["location"]) == (303, "/new")


@pytest.mark.parametrize(
    ("scheme", "prefix", "more"), [("http", "", ""), ("https", "__Host-", " Secure;")]
)
def test_the_cookie_is_for_this_browser_and_service_alone(app, key, scheme, prefix, more):
    opened = Browser(app(), scheme=scheme)
    given = opened.sign_in(key).headers.get_list("set-cookie")
    expected = rf"{prefix}tuner_session=[\w-]{{43}}; Path=/; HttpOnly; SameSite=Lax;{more}"
    assert len([one for one in given if re.fullmatch(f"{expected} Max-Age=604800", one)]) == 1
    (forgotten,) = [one for one in given if "tuner_visit=;" in one]
    assert forgotten.endswith("Max-Age=0")
    assert opened.get("/").status_code == 200


def test_each_sign_in_is_a_session_of_its_own(browser, key, store):
    """Whoever had a cookie put into the browser knows nothing of the session that begins."""
    planted = "P" * 43
    browser.cookies.set("tuner_session", planted, domain="localhost.local")
    browser.sign_in(key)
    first = browser.session()
    assert first not in (None, planted)
    old = Browser(browser.app)
    old.cookies.set("tuner_session", first or "")
    assert old.get("/").status_code == 200
    browser.submit("/sign-in", {"key": key}, page="/")
    assert browser.session() not in (first, planted)
    assert count(store) == 1
    assert old.get("/").status_code == 303, "the one before has ended"


def test_a_key_that_is_none_is_told_so_beside_the_field(browser, keys):
    revoked, text = keys.create("a", Scope.ADMIN)
    keys.revoke(revoked.id)
    for given in ("", "x", WRONG, text, "é", "k" * 100_000, "\x00"):
        response = browser.sign_in(given, next="/new")
        assert response.status_code == 401
        assert response.headers["www-authenticate"] == 'Bearer realm="tuner"'
        assert 'aria-invalid="true"' in response.text
        assert 'name="next" value="/new"' in response.text
        assert browser.session() is None
        assert given not in response.text or given in ("", "x", "é")


def test_no_secret_is_kept_or_logged(browser, keys, store, caplog):
    made, key = keys.create("a", Scope.READ)
    wrong = key[:-1] + ("A" if key[-1] != "A" else "B")
    with caplog.at_level(logging.DEBUG):
        browser.sign_in(wrong)
        browser.sign_in(key)
        token = browser.session()
        form = browser.token("/")
        browser.get("/nowhere")
        browser.post("/new", data={"key": key})
        browser.submit("/sign-out", page="/")
    assert token is not None
    (line,) = [vars(one) for one in caplog.records if one.message == "key refused"]
    assert (line["key"], line["client"]) == (made.id, "192.0.2.1")
    logged = repr([record.__dict__ for record in caplog.records])
    assert "/sign-in" in logged
    with store.transactions.read() as session:
        kept = "".join(
            repr(session.execute(text(f"SELECT * FROM {table}")).all())
            for table in ("audit", "sessions", "keys")
        )
    for secret in (key[-43:], wrong[-43:], token, form):
        assert secret not in logged
        assert secret not in kept


def test_guesses_have_the_rate_of_their_address(app, key):
    limited = app(rate_burst=6, rate_per_s=0.001)
    guesser = Browser(limited)
    token = guesser.token("/sign-in")
    guesses = [
        guesser.post("/sign-in", data={"key": WRONG, "csrf_token": token}).status_code
        for _ in range(8)
    ]
    assert guesses == [401] * 5 + [429] * 3
    refused = guesser.get("/sign-in")
    assert refused.status_code == 429
    assert refused.headers["content-type"].startswith("text/html")
    assert int(refused.headers["retry-after"]) > 900
    assert Browser(limited, address="192.0.2.9").sign_in(key).status_code == 303


def test_nobody_is_signed_in_or_out_by_another_site(browser, key):
    for origin in ("https://evil.example", "null"):
        assert browser.submit("/sign-in", {"key": key}, Origin=origin).status_code == 403
    assert browser.post("/sign-in", data={"key": key}).status_code == 403, "nor without the token"
    assert browser.session() is None
    browser.sign_in(key)
    assert browser.post("/sign-out").status_code == 415
    assert browser.post("/sign-out", data={"csrf_token": "0" * 128}).status_code == 403
    cross = {"Sec_Fetch_Site": "cross-site"}
    assert browser.submit("/sign-out", page="/", **cross).status_code == 403
    assert browser.get("/sign-out").status_code == 405
    assert browser.get("/").status_code == 200


def test_who_signs_out_is_out_everywhere(browser, key, store):
    browser.sign_in(key)
    token = browser.session() or ""
    response = browser.submit("/sign-out", page="/")
    assert (response.status_code, response.headers["location"]) == (303, "/sign-in")
    given = response.headers.get_list("set-cookie")
    assert sorted(one.partition("=")[0] for one in given) == ["tuner_session", "tuner_visit"]
    assert all(one.endswith("Max-Age=0") for one in given)
    assert (browser.session(), count(store)) == (None, 0)
    browser.cookies.set("tuner_session", token)
    assert browser.get("/").status_code == 303, "also for whoever kept the cookie"


def test_a_session_reads_for_tools_and_changes_nothing(browser, keys, store, study_id):
    made, key = keys.create("a", Scope.ADMIN)
    browser.sign_in(key)
    token = {"csrf_token": browser.token("/")}
    assert browser.get(f"/tune/{study_id}").status_code == 200
    assert browser.get(f"/tune/{study_id}/export/accelerate").status_code != 401
    assert browser.get("/tune/st-000000000000/events").status_code == 404
    assert browser.request("DELETE", f"/tune/{study_id}").status_code == 401
    assert browser.request("DELETE", f"/tune/{study_id}", data=token).status_code == 401
    assert browser.post("/tune", json=PREDICTED).status_code == 401
    assert store.study(study_id).state == "queued"
    keys.revoke(made.id)
    assert browser.get("/").status_code == 303
    assert browser.get("/tune").status_code == 401
