"""Files that pages load: addresses that change with them, and no file but those."""

import re

import pytest

from api.pages.assets import FAVICON, MEDIA_TYPES, Asset, asset_url, assets


def test_the_address_changes_with_the_content() -> None:
    def url(content: bytes) -> str:
        version = Asset.of("style.css", content, "text/css").version
        return f"/static/{version}/style.css"

    assert url(b"a") != url(b"b")
    assert url(b"a") == url(b"a") == Asset.of("style.css", b"a", "text/css").url


def test_every_file_is_known_by_its_name() -> None:
    found = assets()
    assert {"style.css", FAVICON} <= set(found)
    for name, one in found.items():
        assert one.name == name
        assert re.fullmatch(r"/static/[0-9a-f]{16}/[a-z_]+\.[a-z0-9]+", one.url)
        assert asset_url(name) == one.url
        assert MEDIA_TYPES["." + name.rpartition(".")[2]] == one.media_type
        assert one.content


@pytest.mark.parametrize("name", ["", "nothing.css", "../render.py", "/etc/passwd", "__init__.py"])
def test_there_are_no_others(name: str) -> None:
    with pytest.raises(KeyError):
        asset_url(name)
