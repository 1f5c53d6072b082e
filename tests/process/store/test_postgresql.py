"""The store's contract, on PostgreSQL: the tests of ``tests/unit/store`` that need a database."""

from sqlalchemy.exc import IntegrityError  # noqa: F401  (in what is imported below)

from tests.unit.store.test_attempts import *  # noqa: F403
from tests.unit.store.test_audit import *  # noqa: F403
from tests.unit.store.test_calibrations import *  # noqa: F403
from tests.unit.store.test_claims import *  # noqa: F403
from tests.unit.store.test_devices import *  # noqa: F403
from tests.unit.store.test_dry_runs import *  # noqa: F403
from tests.unit.store.test_figures import *  # noqa: F403
from tests.unit.store.test_guards import *  # noqa: F403
from tests.unit.store.test_keys import *  # noqa: F403
from tests.unit.store.test_listing import *  # noqa: F403
from tests.unit.store.test_queue import *  # noqa: F403
from tests.unit.store.test_requests import *  # noqa: F403
from tests.unit.store.test_rows import *  # noqa: F403
from tests.unit.store.test_sessions import *  # noqa: F403
from tests.unit.store.test_similar import *  # noqa: F403
from tests.unit.store.test_store import *  # noqa: F403
from tests.unit.store.test_summaries import *  # noqa: F403
from tests.unit.store.test_workers import *  # noqa: F403
