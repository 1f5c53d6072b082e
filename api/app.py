"""The FastAPI application: studies to read, as JSON.

It answers on the machine that it runs on only, and changes nothing: see ``api.__main__``.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import FastAPI, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware

from tuner import planner
from tuner.errors import NothingFitsError, StoreError, TunerError, UsageError
from tuner.store import Store, StudySummary
from tuner.study import Study

HOSTS = ("localhost", "127.0.0.1", "[::1]")
"""Names that a browser may call this service by: another page's name is refused."""

STATUS: Mapping[type[TunerError], int] = {UsageError: 422, NothingFitsError: 409, StoreError: 503}
"""HTTP status of each kind of error; a study that is not there is 404."""

StudyId = Annotated[str, Path(max_length=64, description="A study's id, such as st-0123456789ab")]


def create_app(store: Store) -> FastAPI:
    """The application over one open store."""
    app = FastAPI(title="tuner", summary="The fastest training settings that fit in memory")
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(HOSTS))
    app.add_exception_handler(TunerError, _tuner_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _validation_error)

    @app.get("/healthz", summary="Whether the service is up")
    def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/tune", summary="Studies, the one asked last first")
    def list_studies(
        limit: Annotated[int, Query(ge=1, le=200, description="Studies at most")] = 50,
    ) -> dict[str, Any]:
        return {"studies": [_summary(summary) for summary in store.studies(limit)]}

    @app.get("/tune/{study_id}", summary="A study: its question, where it stands, its suggestion")
    def show_study(study_id: StudyId) -> dict[str, Any]:
        study = _find(store, study_id)
        return {
            "study_id": study.id,
            "state": str(study.state),
            "reason": study.reason,
            "question": study.question.as_dict(),
            "terms": study.terms.as_dict(),
            "suggestion": planner.answer(study).as_dict(),
        }

    @app.get("/tune/{study_id}/probes", summary="A study's probes, oldest first")
    def show_probes(study_id: StudyId) -> dict[str, Any]:
        study = _find(store, study_id)
        return {"probes": [planner.probe_as_dict(study, probe) for probe in study.probes]}

    return app


def _find(store: Store, study_id: str) -> Study:
    try:
        return store.study(study_id)
    except UsageError as error:
        raise HTTPException(404, str(error)) from error


def _summary(summary: StudySummary) -> dict[str, Any]:
    probes = {str(outcome): count for outcome, count in summary.probes.items()}
    return {
        "study_id": summary.id,
        "model": summary.model_name,
        "cluster": summary.cluster_name,
        "state": str(summary.state),
        "reason": summary.reason,
        "probes": probes,
        "created_at": summary.created_at,
        "asked_at": summary.asked_at,
    }


def _problem(status: int, detail: str, **more: Any) -> JSONResponse:
    """An RFC 9457 problem."""
    body = {"type": "about:blank", "status": status, "detail": detail, **more}
    return JSONResponse(body, status_code=status, media_type="application/problem+json")


async def _tuner_error(request: Request, error: Exception) -> JSONResponse:
    status = next((s for kind, s in STATUS.items() if isinstance(error, kind)), 500)
    return _problem(status, str(error))


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return _problem(error.status_code, str(error.detail))


async def _validation_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"])
    return _problem(422, f"{field}: {first['msg']}", field=field)
