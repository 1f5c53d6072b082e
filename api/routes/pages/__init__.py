"""Pages for people, by their paths; the OpenAPI document does not tell of them."""

from fastapi import APIRouter

from api.routes.pages import compare, sign_in, static, studies, study, what_if
from tuner.store.keys import Keys


def page_routers(keys: Keys) -> tuple[APIRouter, ...]:
    """All of them; whoever signs in does so by the keys of a database."""
    return (
        studies.router,
        study.router,
        what_if.router,
        compare.router,
        sign_in.sign_in_router(keys),
        static.router,
    )
