"""Files that pages load: kept for ever at their address, and open to everybody."""

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from api.app import create_app
from api.pages.assets import asset_url, assets
from api.settings import Settings
from tuner.store import Store

FOR_EVER = "public, max-age=31536000, immutable"


@pytest.fixture
def stranger(store: Store) -> Iterator[TestClient]:
    """Somebody without a key, where keys are needed."""
    app = create_app(store, Settings(_env_file=None, require_keys=True))
    with TestClient(app, base_url="http://localhost", client=("192.0.2.1", 50000)) as opened:
        yield opened


@pytest.mark.parametrize("name", sorted(assets()))
def test_each_file_is_served_and_may_be_kept(stranger: TestClient, name: str) -> None:
    response = stranger.get(asset_url(name))
    assert response.status_code == 200
    assert response.content == assets()[name].content
    assert response.headers["content-type"] == assets()[name].media_type
    assert response.headers["cache-control"] == FOR_EVER
    assert response.headers["x-content-type-options"] == "nosniff"
    assert "set-cookie" not in response.headers


def test_its_tag_saves_sending_it_again(stranger: TestClient) -> None:
    tag = stranger.get(asset_url("style.css")).headers["etag"]
    for known in (tag, f'W/{tag}, "other"'):
        response = stranger.get(asset_url("style.css"), headers={"If-None-Match": known})
        assert (response.status_code, response.content) == (304, b"")
        assert response.headers["cache-control"] == FOR_EVER
    other = stranger.get(asset_url("style.css"), headers={"If-None-Match": '"other"'})
    assert other.status_code == 200


def test_another_version_is_not_kept(stranger: TestClient) -> None:
    """As while two releases of the service answer side by side."""
    response = stranger.get("/static/0000000000000000/style.css")
    assert response.content == assets()["style.css"].content
    assert response.headers["cache-control"] == "public, no-cache"


@pytest.mark.parametrize(
    "path",
    [
        "/static/0/nothing.css",
        "/static/0/..%2frender.py",
        "/static/0/%2e%2e/render.py",
        "/static/../render.py",
        "/static/0/__init__.py",
        "/static/",
        "/static/0/",
        "/static/0/style.css/",
        "/static/0/%00",
    ],
)
def test_there_is_nothing_else(stranger: TestClient, path: str) -> None:
    response = stranger.get(path)
    assert response.status_code in (400, 401, 404)
    assert response.headers["content-type"] == "application/problem+json"


def test_head_says_what_get_would(stranger: TestClient) -> None:
    response = stranger.head(asset_url("style.css"), headers={"Accept-Encoding": "identity"})
    assert (response.status_code, response.content) == (200, b"")
    assert int(response.headers["content-length"]) == len(assets()["style.css"].content)


def test_the_icon_is_where_browsers_look(stranger: TestClient) -> None:
    response = stranger.get("/favicon.ico")
    assert response.headers["content-type"] == "image/svg+xml"
    assert response.headers["cache-control"] == "public, no-cache"
