"""The store's contract, on PostgreSQL: tests of ``tests/unit/store`` whose
locks, constraints, order or plan another database may have otherwise."""

from sqlalchemy.exc import IntegrityError  # noqa: F401  (in what is imported below)

from tests.unit.store.test_claims import *  # noqa: F403
from tests.unit.store.test_devices import *  # noqa: F403
from tests.unit.store.test_dry_runs import *  # noqa: F403
from tests.unit.store.test_figures import *  # noqa: F403
from tests.unit.store.test_listing import *  # noqa: F403
from tests.unit.store.test_queue import *  # noqa: F403
from tests.unit.store.test_requests import *  # noqa: F403
from tests.unit.store.test_rows import *  # noqa: F403
from tests.unit.store.test_store import *  # noqa: F403
