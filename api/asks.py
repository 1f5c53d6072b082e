"""Questions that are answered at once, from arithmetic and what is stored: nothing is asked of a
worker, and nothing is kept. And the names that questions may use."""

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Response

from api import schemas
from api.inputs import InContext, JsonBody
from api.openapi import answer, body_of, problems
from api.security import Reader
from tuner.client.cases import (
    Case,
    DryRuns,
    NotCoveredError,
    Policy,
    Prediction,
    answer_of,
    read_case,
)
from tuner.client.cases.dry_runs import Watch
from tuner.client.cases.reading import CaseGiven
from tuner.client.check import CheckRequest, check_case, read_check
from tuner.client.request import SizeRequest, check_plain, read
from tuner.client.size import known_of, sizes_of
from tuner.client.values import listed_gpus, listed_models, silent
from tuner.core.study import Question
from tuner.errors import UsageError
from tuner.launchfiles import FORMATS
from tuner.launchfiles.files import READERS
from tuner.machine import Machine
from tuner.planner.sizing import parts_of
from tuner.store.workers import Workers
from tuner.text import json_text

# Cases of one request.
MOST_CASES = 200

router = APIRouter(tags=["answers"])


@router.post(
    "/size",
    openapi_extra=body_of(SizeRequest),
    summary="How many GPUs a job needs, and how large it may be",
    responses={200: answer(schemas.SizedJob, "A row for each cluster."), **problems(413, 415, 422)},
)
async def size_job(context: InContext, caller: Reader, body: JsonBody) -> Response:
    """By arithmetic over every legal configuration, in seconds: the fewest GPUs on which it fits,
    and that reach the goal; the longest sequence, the largest micro-batch, and the largest model of
    a family; with a price, what a billion tokens cost."""

    def sized() -> str:
        check_plain(body)
        request = read(SizeRequest, body)

        def bounded(question: Question) -> None:
            for part in parts_of(question):
                request.check_part(part)

        found = sizes_of(request, known_of(context.store), check=bounded)
        return json_text({n: v for n, v in found.as_dict().items() if n != "verified"})

    return _json(await context.turns.run(caller.owner, sized))


@router.post(
    "/predict",
    openapi_extra=body_of(CaseGiven, CheckRequest),
    summary="Memory and speed of a configuration",
    responses={200: answer(schemas.Predicted, "The prediction."), **problems(413, 415, 422)},
)
async def predict_case(context: InContext, caller: Reader, body: JsonBody) -> Response:
    """From dry runs that are kept, and else by arithmetic. What nothing is known of has a reason,
    and ``fits`` is null. In the place of a case, ``{"cases": [...]}`` has up to 200, answered in
    their order under ``answers``; of one that is wrong with ``error``. A case may be a file, under
    ``from``, with what that does not say."""

    def predicted() -> str:
        check_plain(body)
        with DryRuns(context.store, Policy.NONE, Watch(silent)) as dry_runs:
            if set(body) != {"cases"}:
                return json_text(_predicted(_read(body), dry_runs))
            cases = body["cases"]
            if not isinstance(cases, list) or not 0 < len(cases) <= MOST_CASES:
                raise UsageError("cases", cases, f"must be a list of 1 to {MOST_CASES} cases")
            return json_text({"answers": [answered(case, dry_runs) for case in cases]})

    def answered(case: Any, dry_runs: DryRuns) -> dict[str, Any]:
        try:
            check_plain(case)
            return _predicted(_read(case), dry_runs)
        except UsageError as error:
            errors = [one.as_dict() for one in error.errors]
            said = {"field": error.field, "message": error.errors[0].detail, "errors": errors}
            return {"error": said}

    return _json(await context.turns.run(caller.owner, predicted))


def _read(values: Mapping[str, Any]) -> Case | NotCoveredError:
    if isinstance(values, Mapping) and "from" in values:
        return read_check(values)[1]
    place = values.get("cluster")
    if isinstance(place, str) and place.strip().lower() == "local":
        allowed = "is the machine that asks: name what it has, such as 8xa100-80gb"
        raise UsageError("cluster", place, allowed)
    try:
        return read_case(values)
    except NotCoveredError as error:
        return error


def _predicted(case: Case | NotCoveredError, dry_runs: DryRuns) -> dict[str, Any]:
    if isinstance(case, NotCoveredError):
        return Prediction(reason=case.allowed).as_dict()
    dry_runs.prepare([case])
    return answer_of(case, dry_runs.of(case)).as_dict()


@router.post(
    "/check",
    openapi_extra=body_of(CheckRequest),
    summary="Whether a configuration file still fits",
    responses={200: answer(schemas.Checked, "What is known of it."), **problems(413, 415, 422)},
)
async def check_file(context: InContext, caller: Reader, body: JsonBody) -> Response:
    """What was measured of the very settings in these versions goes before what is predicted. The
    file itself is sent, as an object or as its text; no other file that it names is read."""

    def checked() -> str:
        check_plain(body)
        with DryRuns(context.store, Policy.NONE, Watch(silent)) as dry_runs:
            name, case = read_check(body)
            if isinstance(case, NotCoveredError):
                return json_text({"format": name, **Prediction(reason=case.allowed).as_dict()})
            dry_runs.prepare([case])
            return json_text(check_case(context.store, name, case, dry_runs.of(case)).as_dict())

    return _json(await context.turns.run(caller.owner, checked))


def _json(text: str) -> Response:
    return Response(text, media_type="application/json")


# -- names ------------------------------------------------------------------------------------


@router.get("/models", summary="Models of the catalogue", responses=problems())
def list_models(caller: Reader) -> schemas.Models:
    """Any of these names may be a workload's model."""
    return schemas.Models.model_validate({"models": listed_models()})


@router.get("/gpus", summary="Kinds of GPU that are known", responses=problems())
def list_gpus(caller: Reader) -> schemas.Gpus:
    """Any of these names may be part of a cluster's, such as 8xh100-80gb."""
    return schemas.Gpus.model_validate({"gpus": listed_gpus()})


@router.get("/formats", summary="Files that are written and read", responses=problems())
def list_formats(caller: Reader) -> schemas.Formats:
    """Formats of ``GET /tune/{id}/export/{format}``, and those that ``POST /check`` reads."""
    written = [
        {"name": one.name, "file_name": one.file_name, "media_type": one.media_type}
        for one in FORMATS.values()
    ]
    return schemas.Formats.model_validate({"written": written, "read": list(READERS)})


@router.get("/workers", summary="Workers that serve studies now", responses=problems())
def list_workers(context: InContext, caller: Reader) -> schemas.LivingWorkers:
    """Those that gave a sign within the last minute."""
    found = Workers(context.store.transactions).living()
    listed = []
    for one in found:
        there = Machine.from_dict(one.machine)
        has = {"nodes": len(there.nodes), "gpus": [gpu.name for gpu in there.gpus]}
        has |= {"cores": there.cores, "memory_bytes": there.memory_bytes}
        known = {"id": one.id, "name": one.name, "pools": list(one.pools), "machine": has}
        times = {"started_at": one.started_at, "seen_at": one.seen_at}
        listed.append({**known, "versions": dict(one.versions), **times})
    return schemas.LivingWorkers.model_validate({"workers": listed})
