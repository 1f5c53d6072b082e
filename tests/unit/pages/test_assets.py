"""Files that pages load: addresses that change with them, and no file but those."""

import re
from hashlib import sha256

import pytest

from api.pages.assets import FAVICON, MEDIA_TYPES, asset_url, assets


def test_every_file_is_known_by_its_name() -> None:
    found = assets()
    assert {"style.css", FAVICON} <= set(found)
    for name, one in found.items():
        assert re.fullmatch(r"/static/[0-9a-f]{16}/[a-z_]+\.[a-z0-9]+", asset_url(name))
        assert one.version == sha256(one.content).hexdigest()[:16]
        assert MEDIA_TYPES["." + name.rpartition(".")[2]] == one.media_type
        assert one.content


@pytest.mark.parametrize("name", ["", "nothing.css", "../render.py", "/etc/passwd", "__init__.py"])
def test_there_are_no_others(name: str) -> None:
    with pytest.raises(KeyError):
        asset_url(name)
