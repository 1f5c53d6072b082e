"""Objects as keys of caches, where what is kept is of one object and of no other."""

from typing import Generic, TypeVar

T = TypeVar("T")


class Same(Generic[T]):
    """Equal where the object is the very same one.

    Studies and what is learned of them hold mappings, and cannot be hashed; to compare two of them
    would take as long as to make anew what is kept. They are never changed once they are made. A
    cache holds the object with its key, so that no other one can be at its address.
    """

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value
