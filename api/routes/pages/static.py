"""``/static/{version}/{name}``: the files that pages load."""

from typing import Annotated

from fastapi import APIRouter, Header, Response

from api.pages.assets import FAVICON, Asset, assets
from api.problems import ProblemError

FOR_EVER = "public, max-age=31536000, immutable"
"""A year, of what never changes at its address."""
ASK_AGAIN = "public, no-cache"

router = APIRouter(include_in_schema=False)


@router.get("/static/{version}/{name}")
def serve_file(
    version: str, name: str, if_none_match: Annotated[str | None, Header()] = None
) -> Response:
    """A file; of another version than was asked for, it is not to be kept."""
    found = assets().get(name)
    if found is None:
        raise ProblemError(404, "there is nothing at this path")
    return _sent(found, FOR_EVER if found.version == version else ASK_AGAIN, if_none_match)


@router.get("/favicon.ico")
def serve_favicon(if_none_match: Annotated[str | None, Header()] = None) -> Response:
    """For browsers that ask without having been told of one."""
    return _sent(assets()[FAVICON], ASK_AGAIN, if_none_match)


def _sent(found: Asset, keep: str, known: str | None) -> Response:
    etag = f'"{found.version}"'
    headers = {"Cache-Control": keep, "ETag": etag}
    if known is not None and etag in known:
        return Response(None, 304, headers)
    return Response(found.content, 200, headers, found.media_type)
