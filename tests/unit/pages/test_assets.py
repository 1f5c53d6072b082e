"""Files that pages load: kept for ever at their address, open to everybody, and no others."""

from hashlib import sha256

import pytest
from starlette.testclient import TestClient

from api.pages.render import FAVICON, FOR_EVER, asset_url, assets


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
