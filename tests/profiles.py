"""The two ways in which tests of hypothesis, and of schemathesis, draw their examples.

``tests``, of ``make test``, ``make test-all`` and CI, draws the same ones wherever and whenever it
runs. ``long``, of ``make test-long``, draws others each time and many more; it shrinks what fails
and keeps it in ``.hypothesis`` for the next run, and is never part of CI.
"""

from hypothesis import HealthCheck, Phase, settings
from hypothesis.database import DirectoryBasedExampleDatabase
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

SAME, LONG = "tests", "long"
COUNT = 100
"""Examples of a test that names no number."""
TIMES = 20
"""How many more are drawn by the long profile."""


def register():
    # How long an example takes to be drawn or tested says something of the machine alone.
    untimed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile(
        SAME,
        untimed,
        max_examples=COUNT,
        derandomize=True,
        database=None,
        # Shrinking takes up to five minutes for each failure, and the long profile does it.
        phases=(Phase.explicit, Phase.generate),
    )
    # All of it said: in CI hypothesis's own defaults draw the same examples, and keep none.
    settings.register_profile(
        LONG,
        untimed,
        max_examples=COUNT * TIMES,
        derandomize=False,
        database=DirectoryBasedExampleDatabase(".hypothesis/examples"),
        phases=tuple(Phase),
        print_blob=True,
    )
    settings.load_profile(SAME)


def examples(count):
    """As many examples, or :data:`TIMES` as many under the long profile."""
    chosen = settings.get_profile(settings.get_current_profile_name()).max_examples
    return count * chosen // COUNT


def draw_no_constants():
    """Keeps constants of the project's modules out of what is drawn, which otherwise depends on
    the modules that are imported by then: on the tests that ran before, and on each edit."""
    nothing = Constants()
    providers._get_local_constants = lambda: nothing
