"""Turns on devices: who has them, who waits, and what is left of those that die."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tuner.errors import ProbeError
from workers.device_locks import DeviceLocks, default_lock_path, in_order

ONE = ("GPU-1",)

TAKE = """
import sys, time
from pathlib import Path
from workers.device_locks import DeviceLocks
assert DeviceLocks(Path(sys.argv[1]), ["GPU-1"]).take()
print("taken", flush=True)
time.sleep(60)
"""

WAIT = TAKE.replace("assert", "assert not").replace("taken", "waiting")


def test_one_at_a_time(tmp_path) -> None:
    one, other = DeviceLocks(tmp_path / "lock", ONE), DeviceLocks(tmp_path / "lock", ONE)
    assert one.take()
    assert one.take()
    assert not other.take()
    one.give()
    one.give()
    assert other.take()
    other.give()


def test_a_turn_ends_with_the_process_that_has_it(tmp_path) -> None:
    argv = [sys.executable, "-P", "-c", TAKE, str(tmp_path / "lock")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"taken\n"
        turn = DeviceLocks(tmp_path / "lock", ONE)
        assert not turn.take()
        holder.kill()
        holder.wait()
    assert turn.take()
    turn.give()


def test_a_lock_that_is_a_link_is_refused(tmp_path) -> None:
    (tmp_path / "lock.GPU-1").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ProbeError, match="cannot lock"):
        DeviceLocks(tmp_path / "lock", ONE).take()
    assert not (tmp_path / "elsewhere").exists()


def test_the_lock_is_the_users() -> None:
    assert str(os.getuid()) in default_lock_path().name


def test_who_holds_a_turn_knows_whether_another_waits(tmp_path) -> None:
    holder, other, third = (DeviceLocks(tmp_path / "lock", ONE) for _ in range(3))
    assert holder.take()
    assert not holder.wanted
    assert not other.take()
    assert holder.wanted
    assert not third.take()
    other.give()
    assert holder.wanted
    third.give()
    assert not holder.wanted
    assert not other.take()
    holder.give()
    assert other.take()
    assert not other.wanted


def test_a_waiter_that_dies_waits_no_more(tmp_path) -> None:
    turn = DeviceLocks(tmp_path / "lock", ONE)
    assert turn.take()
    argv = [sys.executable, "-P", "-c", WAIT, str(tmp_path / "lock")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as waiter:
        assert waiter.stdout is not None
        assert waiter.stdout.readline() == b"waiting\n"
        assert turn.wanted
        waiter.kill()
        waiter.wait()
    assert not turn.wanted


def test_devices_are_taken_in_one_order_gpus_first() -> None:
    names = ["GPU-b", "a/cpu", "GPU-a", "Z/cpu"]
    assert in_order(names) == ["GPU-a", "GPU-b", "Z/cpu", "a/cpu"]
    assert DeviceLocks(Path("x"), names).devices == tuple(in_order(names))


def test_turns_on_different_devices_are_had_at_once(tmp_path) -> None:
    turns = [DeviceLocks(tmp_path / "lock", [name]) for name in ("GPU-1", "GPU-2", "host/cpu")]
    assert all(turn.take() for turn in turns)
    assert not any(turn.wanted for turn in turns)
    for turn in turns:
        turn.give()


def test_a_turn_on_several_keeps_what_it_has_and_waits_for_the_rest(tmp_path) -> None:
    first, second, third = (
        DeviceLocks(tmp_path / "lock", [name]) for name in ("GPU-1", "GPU-2", "GPU-3")
    )
    whole = DeviceLocks(tmp_path / "lock", ["GPU-3", "GPU-1", "GPU-2"])
    assert second.take()
    assert third.take()
    assert not whole.take()
    assert not whole.held
    assert not first.take()  # it is kept for the whole
    assert whole.wanted
    assert second.wanted
    assert third.wanted  # also those behind the one that is waited for
    third.give()
    assert not whole.take()
    assert third.take()  # what comes later in the order is not had before
    third.give()
    second.give()
    assert whole.take()
    assert not second.take()
    whole.give()
    assert second.take()
    second.give()


def test_what_is_free_is_taken_whole_or_not_at_all_and_quietly(tmp_path) -> None:
    holder, whole = (
        DeviceLocks(tmp_path / "lock", ["GPU-2"]),
        DeviceLocks(tmp_path / "lock", ["GPU-1", "GPU-2"]),
    )
    assert holder.take()
    assert not whole.take_free()
    assert not holder.wanted
    other = DeviceLocks(tmp_path / "lock", ["GPU-1"])
    assert other.take()
    other.give()
    holder.give()
    assert whole.take_free()
    assert whole.held
    assert whole.take_free()
    whole.give()


def test_two_that_want_everything_do_not_wait_for_each_other(tmp_path) -> None:
    names = ["GPU-1", "GPU-2", "host/cpu"]
    one, other = DeviceLocks(tmp_path / "lock", names), DeviceLocks(tmp_path / "lock", names[::-1])
    assert not all(turn.take() for turn in (one, other))
    assert one.held
    one.give()
    assert other.take()
    other.give()


def test_a_turn_on_nothing_is_had() -> None:
    nothing = DeviceLocks(Path("nowhere"), [])
    assert nothing.take()
    assert nothing.held
    assert not nothing.wanted
    nothing.give()


def test_devices_that_nobody_else_wants_have_no_locks(tmp_path) -> None:
    one, other = DeviceLocks(None, ["n2/cpu", "GPU-1"]), DeviceLocks(None, ["GPU-1"])
    assert one.take()
    assert other.take_free()
    assert one.devices == ("GPU-1", "n2/cpu")
    assert not one.wanted
    assert list(tmp_path.iterdir()) == []
