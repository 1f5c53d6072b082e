import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

from workers.stop import SIGNALS, StopRequest


def test_a_signal_is_noted_and_stays():
    before = {number: signal.getsignal(number) for number in SIGNALS}
    stop = StopRequest()
    try:
        stop.install()
        os.kill(os.getpid(), signal.SIGTERM)
        started = time.monotonic()
        assert stop.wait(300) == "the worker got SIGTERM"
        assert time.monotonic() - started < 150
        assert stop.wait(0)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_bytes_of_the_starting_command_mean_nothing_and_its_end_does():
    read, write = os.pipe()
    stop = StopRequest(read)
    os.write(write, b"..")
    assert stop.wait(0.01) == ""
    assert stop.wait(0.01) == ""
    os.close(write)
    assert stop.wait(30) == "the command that started the worker is gone"
    os.close(read)


def test_any_number_of_threads_may_wait():
    """Bytes that one of them has read do not hold up another, and the end reaches all."""
    read, write = os.pipe()
    stop = StopRequest(read)
    with ThreadPoolExecutor(4) as threads:
        early = [threads.submit(stop.wait, 0.3) for _ in range(4)]
        for _ in range(50):
            os.write(write, b".")
            time.sleep(0.002)
        assert [one.result(60) for one in early] == [""] * 4
        late = [threads.submit(stop.wait, 300) for _ in range(4)]
        os.close(write)
        why = "the command that started the worker is gone"
        assert [one.result(60) for one in late] == [why] * 4
    os.close(read)


def test_a_request_from_within_is_told_from_others():
    stop = StopRequest()
    stop.request("first")
    stop.request("second")
    assert (stop.wait(0), stop.is_from_within) == ("first", True)
    told = StopRequest()
    told._note(signal.SIGINT, None)
    told.request("later")
    assert told.wait(0) == "the worker got SIGINT"
    assert not told.is_from_within
