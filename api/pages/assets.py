"""The files that pages load, ``/static/{version}/{name}``: an address changes with its content."""

from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Annotated, Final, NamedTuple

from fastapi import APIRouter, Header, Response

from api.problems import ProblemError

# Media types by how a file's name ends. Other files are not served.
MEDIA_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
FAVICON = "icon.svg"
# A year, of what never changes at its address.
FOR_EVER = "public, max-age=31536000, immutable"
ASK_AGAIN = "public, no-cache"

router = APIRouter(include_in_schema=False)


class Asset(NamedTuple):
    """A file of the folder ``static``."""

    content: bytes
    media_type: str
    version: str
    """Beginning of its SHA-256, in hex."""


@cache
def assets() -> dict[str, Asset]:
    """All of them by name, read once: a name that is asked for is looked up, and no path opened."""
    found = {}
    for file in (files("api.pages") / "static").iterdir():
        media_type = MEDIA_TYPES.get(f".{file.name.rpartition('.')[2]}")
        if media_type is not None:
            content = file.read_bytes()
            found[file.name] = Asset(content, media_type, sha256(content).hexdigest()[:16])
    return found


def asset_url(name: str) -> str:
    return f"/static/{assets()[name].version}/{name}"


@router.get("/static/{version}/{name}")
def serve_file(
    version: str, name: str, if_none_match: Annotated[str | None, Header()] = None
) -> Response:
    """A file; of another version than was asked for, it is not to be kept."""
    found = assets().get(name)
    if found is None:
        raise ProblemError(404, "there is nothing at this path")
    etag = f'"{found.version}"'
    keep = FOR_EVER if found.version == version else ASK_AGAIN
    headers = {"Cache-Control": keep, "ETag": etag}
    if if_none_match is not None and etag in if_none_match:
        return Response(None, 304, headers)
    return Response(found.content, 200, headers, found.media_type)


@router.get("/favicon.ico")
def serve_favicon(if_none_match: Annotated[str | None, Header()] = None) -> Response:
    """The icon for browsers that ask without having been told of one."""
    return serve_file("", FAVICON, if_none_match)
