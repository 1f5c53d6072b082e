"""The OpenAPI document: answers of the routes as it describes them, and the document itself."""

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from api import EXAMPLES
from api.events import EventSent
from api.limits import LONGEST_TARGET
from api.problems import CODES, MEDIA_TYPE, TYPE, Problem, title_of
from api.security import Reader
from tuner.client.cases.reading import CaseGiven
from tuner.client.check import CheckRequest
from tuner.client.from_file import TuneFromRequest
from tuner.client.request import SizeRequest, TuneRequest

Responses = dict[int | str, dict[str, Any]]

# An example of each problem's detail.
DETAILS: Mapping[int, str] = {
    400: "the body is not JSON: Expecting value",
    401: "a key is needed: Authorization: Bearer tuner_...",
    403: "this key allows read; this needs submit",
    404: "there is no study st-5c1f0a9be2d4",
    409: "study st-5c1f0a9be2d4 is done already",
    413: "a body may have 262144 bytes",
    414: f"path and query may be of {LONGEST_TARGET} bytes together",
    415: "the body must be application/json",
    422: EXAMPLES["problem"]["detail"],
    429: "too many requests",
    503: "the database cannot be used now",
}

# Problems that every route under a key may answer with.
EVERYWHERE = (400, 401, 403, 414, 429, 503)
# Headers that problems come with.
HEADERS: Mapping[int, str] = {401: "WWW-Authenticate", 429: "Retry-After", 503: "Retry-After"}
# Operations that answer within the limits of a caller, or not at all.
WITHIN_LIMITS = frozenset({"show_study", "export_study"})


# One server-sent event, as OpenAPI 3.2 describes it.
EVENT_ITEM = {
    "type": "object",
    "required": ["id", "event", "data"],
    "properties": {
        "id": {"type": "string"},
        "event": {"type": "string"},
        "data": {
            "type": "string",
            "contentMediaType": "application/json",
            "contentSchema": {"$ref": f"#/components/schemas/{EventSent.__name__}"},
        },
    },
}

router = APIRouter(tags=["service"])


def problems(*statuses: int) -> Responses:
    """The problems of a route, beside those of every route."""
    found: Responses = {}
    for status in sorted({*EVERYWHERE, *statuses}):
        title, code, header = title_of(status), CODES[status], HEADERS.get(status)
        example = {
            "type": TYPE.format(code=code),
            "title": title,
            "status": status,
            "code": code,
            "detail": DETAILS[status],
        }
        content = {
            "schema": {"$ref": "#/components/schemas/Problem"},
            "example": EXAMPLES["problem"] if status == 422 else example,
        }
        found[status] = {
            "description": title,
            "headers": _headers({header: f"See RFC 9110, {header}."} if header else {}),
            "content": {MEDIA_TYPE: content},
        }
    return found


def answer(model: type[BaseModel], description: str, **headers: str) -> dict[str, Any]:
    """An answer that is an object; ``headers`` are its headers' descriptions by name."""
    return {"model": model, "description": description, "headers": _headers(headers)}


def links(*operations: str) -> dict[str, Any]:
    """Links to what can be asked next of a study that was answered, by the operations' names."""
    study = {"study_id": "$response.body#/study_id"}
    answers = {**study, "terms": "$response.body#/terms_id"}
    return {
        name: {"operationId": name, "parameters": answers if name in WITHIN_LIMITS else study}
        for name in operations
    }


def text_answer(by_media_type: Mapping[str, object], description: str) -> dict[str, Any]:
    """An answer in one of some media types, with an example of each."""
    # YAML and JSON are objects to their readers, and all else is a text.
    kinds = {"application/yaml": "object", "application/json": "object"}
    content = {
        media_type: {"schema": {"type": kinds.get(media_type, "string")}, "example": example}
        for media_type, example in by_media_type.items()
    }
    return {"description": description, "content": content}


def body_of(*models: type[BaseModel]) -> dict[str, Any]:
    """A JSON body that is of one of some models, for a route that reads it itself."""
    schemas = [{"$ref": f"#/components/schemas/{model.__name__}"} for model in models]
    schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _headers(described: Mapping[str, str]) -> dict[str, Any]:
    return {
        name.replace("_", "-"): {"description": text, "schema": {"type": "string"}}
        for name, text in described.items()
    }


# What is described of bodies that are read as any JSON, and of what only problems and events have.
DESCRIBED = (
    *(Problem, EventSent, TuneRequest, TuneFromRequest),
    *(SizeRequest, CaseGiven, CheckRequest),
)


def document(app: FastAPI) -> dict[str, Any]:
    """The document, made once; with the schemas that only problems and events have."""
    if app.openapi_schema is None:
        found = get_openapi(
            title=app.title, summary=app.summary, version=app.version, routes=app.routes
        )
        kept = found["components"]["schemas"]
        for model in DESCRIBED:
            schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
            kept |= {**schema.pop("$defs", {}), model.__name__: schema}
        for schema in kept.values():  # docstrings of fields are wrapped
            for field in schema.get("properties", {}).values():
                if "description" in field:
                    field["description"] = " ".join(field["description"].split())
        kept[TuneRequest.__name__]["examples"] = EXAMPLES["requests"]
        for unused in ("HTTPValidationError", "ValidationError"):
            kept.pop(unused, None)
        app.openapi_schema = found
    return app.openapi_schema


@router.get(
    "/openapi.json",
    summary="This document",
    responses={200: {"description": "OpenAPI 3.1"}, **problems()},
)
def show_document(caller: Reader, request: Request) -> dict[str, Any]:
    """For tools that make clients and tests of it."""
    return document(request.app)
