"""Who did what, over HTTP: to admins only, in pages."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from api.keys import protect
from api.problems import add_problems
from api.routes.audit import EXAMPLE, AuditItem, audit_router
from api.settings import Settings
from tuner.store import Store, open_store
from tuner.store.audit import Action, Audit
from tuner.store.keys import Keys
from tuner.store.records import Scope


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path}/studies.db") as opened:
        yield opened


@pytest.fixture
def client(store: Store) -> TestClient:
    app, audit = FastAPI(), Audit(store.transactions)
    app.include_router(audit_router(audit))
    add_problems(app)
    settings = Settings(_env_file=None, require_keys=True)
    protect(app, settings, Keys(store.transactions), audit)
    return TestClient(app, base_url="http://localhost")


@pytest.fixture
def admin(store: Store) -> dict[str, str]:
    """The header of a caller who may see it."""
    text = Keys(store.transactions).create("admin", Scope.ADMIN)[1]
    return {"Authorization": f"Bearer {text}"}


def test_only_admins_see_it(client: TestClient, store: Store) -> None:
    assert client.get("/audit").status_code == 401
    text = Keys(store.transactions).create("a", Scope.SUBMIT)[1]
    refused = client.get("/audit", headers={"Authorization": f"Bearer {text}"})
    assert refused.status_code == 403


def test_it_is_read_in_pages(client: TestClient, store: Store, admin: dict[str, str]) -> None:
    audit = Audit(store.transactions)
    for number in range(4):
        audit.note("local", Action.SUBMIT, "st-0123456789ab", times=number)
    found: list[tuple[str, int | None]] = []
    cursor: dict[str, int] = {}
    while len(found) < 10:
        page = client.get("/audit", params={"limit": 2, **cursor}, headers=admin).json()
        found += [(item["action"], item["data"].get("times")) for item in page["audit"]]
        if page["next"] is None:
            break
        cursor = {"before": page["next"]}
    assert found == [*(("tune.submit", number) for number in (3, 2, 1, 0)), ("key.create", None)]


@pytest.mark.parametrize("query", ["limit=0", "limit=201", "before=0", f"before={2**63}"])
def test_what_cannot_be_asked(client: TestClient, admin: dict[str, str], query: str) -> None:
    response = client.get(f"/audit?{query}", headers=admin)
    assert response.status_code == 422
    assert response.headers["content-type"] == "application/problem+json"


def test_the_example_is_one() -> None:
    assert AuditItem(**EXAMPLE).model_dump() == EXAMPLE
    assert EXAMPLE["action"] in list(Action)
