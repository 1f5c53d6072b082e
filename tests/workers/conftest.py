"""What tests of ranks share with those of workers."""

from tests.process.workers.conftest import (  # noqa: F401
    alive,
    eventually,
    make_job,
    question,
    stand_in_argv,
    store,
)
