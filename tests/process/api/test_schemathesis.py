"""Requests made up from the OpenAPI document, one after another, as its links say.

None may find a mistake of ours: no status, header or body that the document does not tell.
"""

from collections import Counter
from contextlib import contextmanager

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from schemathesis import GenerationMode
from schemathesis.specs.openapi import checks
from sqlalchemy import delete, text

from api.app import create_app
from api.settings import Settings
from tests.profiles import examples
from tests.unit.api.studies import MEASURED, PREDICTED
from tuner.store import open_store
from tuner.store.access import Keys
from tuner.store.tables import Base, KeyRow, Scope

VALID = [PREDICTED, MEASURED, *({**PREDICTED, "cluster": f"{n}xa100-80gb"} for n in (1, 4, 8))]
NOT_LOOKED_AT = [
    checks.positive_data_acceptance,  # what is a string may still name no model
    checks.use_after_free,  # DELETE cancels a study, which stays to be seen
]
STEPS = 10


@contextmanager
def checked(folder):
    """The document as schemathesis reads it, what a caller's key says, and how to empty the
    database."""
    with open_store(f"sqlite:///{folder}/studies.db") as store:
        _, key = Keys(store.transactions).create("tests", Scope.ADMIN)
        app = create_app(
            store,
            Settings(
                _env_file=None,
                require_keys=True,
                allowed_hosts=("testserver",),
                rate_per_s=1e6,
                rate_burst=10**6,
                max_open_studies=10**6,
            ),
        )
        app.state.stopping()  # so that no stream and no long poll waits for what never happens
        bearer = f"Bearer {key}"
        schema = schemathesis.openapi.from_asgi(
            "/openapi.json", app, headers={"Authorization": bearer}
        )
        # A text that is too long by itself may make path and query too long together.
        rejecting = schema.config.checks.negative_data_rejection
        rejecting.expected_statuses = [*rejecting.expected_statuses, "414"]

        def forget():
            """Every sequence finds the same: an empty database."""
            with store.transactions.write() as session:
                for table in reversed(Base.metadata.sorted_tables):
                    if table.name != KeyRow.__tablename__:
                        session.execute(delete(table))
                session.execute(text("DELETE FROM sqlite_sequence"))
            answers = app.state.context.answers
            for kept in (answers._whole, answers):
                kept._found.clear()

        yield schema, bearer, forget


def explore(folder, sequences):
    """Sends sequences of requests; the statuses that were answered."""
    sent = Counter()
    with checked(folder) as (schema, key, forget):

        class Machine(schema.as_state_machine()):
            def setup(self):
                forget()

            def before_call(self, case):
                """Of the questions that were made up, most are replaced by some that make sense."""
                number = len(repr(case.body))
                is_valid = case.meta.generation.mode is GenerationMode.POSITIVE
                if is_valid and case.method == "POST" and number % 4:
                    case.body = VALID[number % len(VALID)]

            def get_call_kwargs(self, case):
                return {"headers": {"Authorization": key}}

            def after_call(self, response, case):
                sent[response.status_code] += 1

            def validate_response(self, response, case, **more):
                case.validate_response(
                    response, excluded_checks=NOT_LOOKED_AT, transport_kwargs=more
                )

        run_state_machine_as_test(
            Machine,
            settings=settings(
                max_examples=examples(sequences),
                stateful_step_count=STEPS,
                suppress_health_check=list(HealthCheck),
            ),
        )
    return sent


@pytest.mark.hypothesis
@pytest.mark.parametrize(
    ("sequences", "count", "statuses"),
    [(10, 50, {202, 422}), pytest.param(250, 2000, {200, 202, 404, 422}, marks=pytest.mark.long)],
)
def test_requests_find_no_mistake(tmp_path, sequences, count, statuses):
    sent = explore(tmp_path, sequences)
    assert sent.total() >= count
    assert sent.keys() >= statuses
