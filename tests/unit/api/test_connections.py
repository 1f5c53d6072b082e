"""Connections whose callers are not let in: which makes room, and how often that is told."""

import asyncio

import pytest

from api.limits import GRACE_S, NO_FILES, QUIET_S, Complaints, Connections


class One:
    """A connection, as far as it is counted."""

    def __init__(self, address, *, is_let_in=False):
        self.client, self.is_let_in, self.transport = (address, 1), is_let_in, self
        self.is_closed = self.is_asking = False

    def abort(self):
        self.is_closed = True


def entered(connections, *some):
    for one in some:
        if one not in connections._open and not one.is_closed:
            connections.enter(one)
    return [one.is_closed for one in some]


def test_the_oldest_silent_one_of_an_address_makes_room(clock):
    connections = Connections(100, most_each=2, clock=clock)
    known, asking = One("192.0.2.1", is_let_in=True), One("192.0.2.1")
    asking.is_asking = True
    silent = [One("192.0.2.1") for _ in range(3)]
    assert not any(entered(connections, known, asking, One("192.0.2.2"), *silent)), "all at once"
    clock.now += GRACE_S
    newest = One("192.0.2.1")
    assert entered(connections, newest, *silent) == [False, True, False, False]
    assert entered(connections, One("192.0.2.1"), known, asking) == [False] * 3
    assert [one.is_closed for one in silent] == [True, True, False]


def test_of_ipv6_a_subscriber_is_one_address(clock):
    connections = Connections(100, most_each=1, clock=clock)
    first = One("2001:db8::1")
    assert entered(connections, first) == [False]
    clock.now += GRACE_S
    assert entered(connections, One("2001:db8::2"), first) == [False, True]


@pytest.mark.parametrize("proxies", [["192.0.2.9"], ["2001:db8::/32", "192.0.2.0/24"], ["*"]])
def test_no_more_are_open_than_may_be_whoever_they_are(clock, proxies):
    connections = Connections(3, proxies, most_each=1, clock=clock)
    behind_a_proxy = [One("192.0.2.9") for _ in range(5)]
    assert entered(connections, *behind_a_proxy) == [True] * 2 + [False] * 3
    assert len(connections) == 3
    connections = Connections(1)
    full = [One("192.0.2.1", is_let_in=True), One("192.0.2.1")]
    assert entered(connections, *full) == [False, True]


def test_it_is_told_once_a_minute(clock, caplog):
    connections = Connections(1, clock=clock)
    entered(connections, *(One(f"192.0.2.{number}") for number in range(5)))
    clock.now += QUIET_S
    entered(connections, One("192.0.2.1"))
    assert [record.message.split()[0] for record in caplog.records] == ["1", "4"]


def test_that_there_are_no_files_left_is_told_once_a_minute(clock, caplog):
    complain = Complaints(clock)
    loop = asyncio.new_event_loop()
    trouble = {"message": f"{NO_FILES}: EMFILE", "exception": OSError(24, "Too many open files")}
    for _ in range(1000):
        complain(loop, trouble)
    clock.now += QUIET_S
    complain(loop, trouble)
    complain(loop, {"message": "another"})
    loop.close()
    assert [record.name for record in caplog.records] == ["api", "api", "asyncio"]
