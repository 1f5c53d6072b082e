"""Answers of the routes as the OpenAPI document tells them."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from api import examples
from api.problems import MEDIA_TYPE, title_of

Responses = dict[int | str, dict[str, Any]]

DETAILS: Mapping[int, str] = {
    400: "the body is not JSON: Expecting value",
    401: "a key is needed: Authorization: Bearer tuner_...",
    403: "this key allows read; this needs submit",
    404: "there is no study st-5c1f0a9be2d4",
    409: "study st-5c1f0a9be2d4 is done already",
    413: "a body may have 262144 bytes",
    415: "the body must be application/json",
    422: examples.PROBLEM["detail"],
    429: "too many requests",
    503: "the database cannot be used now",
}
"""An example of each problem's detail."""

EVERYWHERE = (400, 401, 403, 429, 503)
"""Problems that every route under a key may answer with."""
HEADERS: Mapping[int, str] = {401: "WWW-Authenticate", 429: "Retry-After", 503: "Retry-After"}
"""Headers that problems come with."""
OF_TERMS = frozenset({"show_study", "export_study"})
"""Operations that answer on the terms of a caller, or not at all."""


def problems(*statuses: int) -> Responses:
    """The problems of a route, beside those of every route."""
    return {status: _problem(status) for status in sorted({*EVERYWHERE, *statuses})}


def answer(model: type[BaseModel], description: str, **headers: str) -> dict[str, Any]:
    """An answer that is an object; ``headers`` are its headers' descriptions by name."""
    return {"model": model, "description": description, "headers": _headers(headers)}


def links(*operations: str) -> dict[str, Any]:
    """What can be asked next of a study that was answered, by the operations' names."""
    study = {"study_id": "$response.body#/study_id"}
    answers = {**study, "terms": "$response.body#/terms_id"}
    return {
        name: {"operationId": name, "parameters": answers if name in OF_TERMS else study}
        for name in operations
    }


def text_answer(
    media_type: str, example: str, description: str, kind: str = "string"
) -> dict[str, Any]:
    """An answer that is text; ``kind`` is what a reader of its media type makes of it."""
    content = {media_type: {"schema": {"type": kind}, "example": example}}
    return {"description": description, "content": content}


def text_answers(by_media_type: Mapping[str, object], description: str) -> dict[str, Any]:
    """An answer in one of several media types, with an example of each.

    What a reader makes of YAML and JSON is an object, and of all else a text.
    """
    kinds = {"application/yaml": "object", "application/json": "object"}
    content = {
        media_type: {"schema": {"type": kinds.get(media_type, "string")}, "example": example}
        for media_type, example in by_media_type.items()
    }
    return {"description": description, "content": content}


def _problem(status: int) -> dict[str, Any]:
    title = title_of(status)
    example = {"type": "about:blank", "title": title, "status": status, "detail": DETAILS[status]}
    if status == 422:
        example = examples.PROBLEM
    header = HEADERS.get(status)
    return {
        "description": title,
        "headers": _headers({header: f"See RFC 9110, {header}."} if header else {}),
        "content": {
            MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}, "example": example}
        },
    }


def _headers(described: Mapping[str, str]) -> dict[str, Any]:
    return {
        name.replace("_", "-"): {"description": text, "schema": {"type": "string"}}
        for name, text in described.items()
    }
