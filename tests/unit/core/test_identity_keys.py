"""What is kept by the object is found by that object alone."""

from functools import lru_cache

from tuner.text import Same


def test_equal_objects_are_not_the_same_one() -> None:
    one, other = [1], [1]
    assert Same(one) == Same(one)
    assert hash(Same(one)) == hash(Same(one))
    assert Same(one) != Same(other)
    assert Same(one) != one


def test_a_cache_keeps_the_object_whose_key_it_has() -> None:
    """Else another one might come to be at its address, and be taken for it."""
    made: list[int] = []

    @lru_cache(maxsize=8)
    def length(key: Same[list[int]]) -> int:
        made.append(len(key.value))
        return len(key.value)

    for size in range(20):
        assert length(Same([0] * size)) == size
    assert made == list(range(20))
