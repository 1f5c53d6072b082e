"""``GET /audit``: who did what, and who was refused."""

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from api.keys import Admin
from tuner.store.audit import Audit

MOST = 200
"""Entries of one answer."""

EXAMPLE: dict[str, Any] = {
    "id": 41,
    "at": "2026-11-21T06:10:00.000Z",
    "actor": "5c1f0a9b7e3d2c44",
    "action": "tune.submit",
    "study_id": "st-0123456789ab",
    "data": {"address": "192.0.2.7"},
}


class AuditItem(BaseModel):
    """One thing that somebody did or was refused."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE]})

    id: int = Field(description="Grows with time.")
    at: str = Field(description="UTC in ISO 8601, by the database's clock.")
    actor: str = Field(
        description="A key's id; `local`, with the user's name where a command did it; or"
        " `unknown` for a key that is not good."
    )
    action: str = Field(description="What was done, such as `tune.submit` or `key.refused`.")
    study_id: str = Field(description="The study that it was done to; empty for none.")
    data: dict[str, Any] = Field(description="More of it, such as the caller's address.")


class AuditPage(BaseModel):
    """Entries, the newest first."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"audit": [EXAMPLE], "next": None}]})

    audit: list[AuditItem]
    next: int | None = Field(
        description="Give it as `before` to read on; null after the oldest entry."
    )


def audit_router(audit: Audit) -> APIRouter:
    """The route over one database's audit."""
    router = APIRouter(tags=["operations"])

    @router.get("/audit", summary="Who did what, the newest first")
    def show_audit(
        caller: Admin,
        limit: Annotated[int, Query(ge=1, le=MOST, description="Entries at most")] = 50,
        before: Annotated[
            int | None, Query(ge=1, lt=2**63, description="Only entries older than this id")
        ] = None,
    ) -> AuditPage:
        """Keys made and revoked, questions asked, studies cancelled, and who was refused."""
        found = audit.newest(limit, before)
        items = [AuditItem(**entry.as_dict()) for entry in found]
        return AuditPage(audit=items, next=items[-1].id if len(items) == limit else None)

    return router
