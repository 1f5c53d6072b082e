"""Moments at which memory could be highest, in planted logs."""

from workers.probe.dry.ledger import Block, Category, Change, Segment
from workers.probe.dry.turning_points import CATEGORIES, highest, turning_points

FORWARD = Segment(0, "forward", "layer 0")
BACKWARD = Segment(0, "backward", "layer 0")


def block(category: Category | None = None, phase: str = "forward", death: str = "") -> Block:
    return Block(phase, True, False, category, death)


def of(point: tuple[int, ...]) -> dict[str, int]:
    return {str(c): n for c, n in zip(CATEGORIES, point, strict=True) if n}


def test_moments_are_kept_before_memory_falls_and_at_a_segments_ends() -> None:
    held, first, second = (
        block(Category.PARAMETERS),
        block(death="backward"),
        block(death="forward"),
    )
    log = [
        Change(held, 100), FORWARD, Change(first, 10), Change(second, 5), Change(second, -5),
        BACKWARD, Change(first, -10), Change(block(phase="backward"), 3),
    ]  # fmt: skip
    points = turning_points(log)
    assert list(points) == [FORWARD, BACKWARD]
    assert [of(p) for p in points[FORWARD]] == [
        {"parameters": 100},
        {"parameters": 100, "activations": 10, "temporaries": 5},
    ][1:]
    assert [sum(p) for p in points[BACKWARD]] == [110, 103]
    assert of(highest(points[FORWARD])) == {
        "parameters": 100, "activations": 10, "temporaries": 5,
    }  # fmt: skip


def test_a_segment_without_changes_has_what_is_held() -> None:
    points = turning_points([Change(block(Category.OPTIMIZER_STATE), 7), FORWARD, BACKWARD])
    assert [of(p) for p in points[FORWARD]] == [{"optimizer_state": 7}]
    assert [of(p) for p in points[BACKWARD]] == [{"optimizer_state": 7}]


def test_a_category_that_becomes_known_late_holds_from_birth() -> None:
    gradient = block(phase="backward")
    log = [BACKWARD, Change(gradient, 8), Change(gradient, -8)]
    gradient.category = Category.GRADIENTS_SHARDED
    assert of(turning_points(log)[BACKWARD][0]) == {"gradients_sharded": 8}
