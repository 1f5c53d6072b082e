"""The files that pages load: each has an address that changes with what is in it."""

from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Final

MEDIA_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".woff2": "font/woff2",
}
"""Media types by how a file's name ends. Other files are not served."""
VERSION_DIGITS = 16
FAVICON = "icon.svg"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asset:
    """A file that pages load."""

    name: str
    """Its name in the folder ``static``."""
    content: bytes
    """What is in it."""
    media_type: str
    """What it is."""
    version: str
    """Beginning of its SHA-256, in hex."""

    @classmethod
    def of(cls, name: str, content: bytes, media_type: str) -> "Asset":
        """The asset of a file's content."""
        version = sha256(content).hexdigest()[:VERSION_DIGITS]
        return cls(name=name, content=content, media_type=media_type, version=version)

    @property
    def url(self) -> str:
        """Where it is served, and may be kept for ever."""
        return f"/static/{self.version}/{self.name}"


@cache
def assets() -> dict[str, Asset]:
    """All of them by name, read once: whatever is asked for is looked up, and no path opened."""
    folder = files("api.pages") / "static"
    return {
        file.name: Asset.of(file.name, file.read_bytes(), media_type)
        for file in folder.iterdir()
        for ending, media_type in MEDIA_TYPES.items()
        if file.name.endswith(ending)
    }


def asset_url(name: str) -> str:
    """Where a page loads a file of the folder ``static`` from.

    Raises:
        KeyError: there is no such file.
    """
    return assets()[name].url
