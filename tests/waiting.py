"""Waits for conditions: tests never rely on how long something takes."""

import time


def until(found, seconds=600.0, pause_s=0.01):
    """Waits until a call finds something, and returns it; fails after so many seconds."""
    end = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < end, f"it did not come to pass in {seconds:g} s"
        time.sleep(pause_s)
    return value
