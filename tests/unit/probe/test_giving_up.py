"""When steps are seen to take too long."""

import pytest

from workers.probe.giving_up import computing, least_s


@pytest.mark.parametrize(
    ("times_s", "accumulation", "expected_s"),
    [
        ({4: (0.5, 0.4)}, 4, 0.4),  # one unlucky step decides nothing
        ({4: (0.4, 0.4)}, 16, 0.4),  # the rest may be the optimizer's
        ({2: (0.2, 0.2), 4: (0.4, 0.4)}, 16, 1.6),  # all of it is the micro-batches'
        ({2: (0.3, 0.3), 4: (0.4, 0.5)}, 16, 1.0),
        ({2: (0.1, 0.5), 4: (0.4, 0.4)}, 16, 0.4),  # nothing can be told of one micro-batch
        ({2: (0.1, 0.1), 4: (0.4, 0.4)}, 16, 1.6),  # no more than in proportion
    ],
)
def test_a_step_takes_at_least(times_s, accumulation, expected_s):
    assert least_s(times_s, accumulation) == pytest.approx(expected_s)


def test_computing_is_what_copies_leave_and_half_at_least():
    step = {"forward": 1.0, "backward": 2.0, "optimizer": 0.5}
    found = computing(step, {"forward": 0.25, "backward": 1.5})
    assert found == {"forward": 0.75, "backward": 1.0, "optimizer": 0.5}
