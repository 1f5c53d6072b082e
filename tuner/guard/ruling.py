"""What is known of settings that are to train what one process trains."""

from enum import StrEnum


class Ruling(StrEnum):
    """What is known of settings."""

    PASSED = "passed"  # they train what one process trains
    FAILED = "failed"  # they do not, or a knob does not act
    NOT_CHECKED = "not_checked"  # nothing was trained, or it could not be judged
