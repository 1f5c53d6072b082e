"""``/openapi.json``: what can be asked, and how."""

from typing import Any

from fastapi import APIRouter, Request

from api.documented import problems
from api.keys import Reader

router = APIRouter(tags=["service"])


@router.get(
    "/openapi.json",
    summary="This document",
    responses={200: {"description": "OpenAPI 3.1"}, **problems()},
)
def show_document(caller: Reader, request: Request) -> dict[str, Any]:
    """For tools that make clients and tests of it."""
    document: dict[str, Any] = request.app.openapi()
    return document
