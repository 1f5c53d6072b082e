"""Pages for people, by their paths; the OpenAPI document does not tell of them."""

from fastapi import APIRouter

from api.pages import assets
from api.pages.routes import sign_in, studies, study
from tuner.store.access import Keys


def page_routers(keys: Keys) -> tuple[APIRouter, ...]:
    """All of them; whoever signs in does so by the keys of a database."""
    return studies.router, study.router, sign_in.sign_in_router(keys), assets.router
