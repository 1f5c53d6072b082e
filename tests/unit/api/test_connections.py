"""Connections whose callers are not let in: which makes room, and how often that is told."""

import asyncio

from api.connections import NO_FILES, QUIET_S, Complaints, Connections


class One:
    """A connection, as far as it is counted."""

    def __init__(self, address, *, is_let_in=False):
        self.client, self.is_let_in, self.transport = (address, 1), is_let_in, self
        self.is_closed = False

    def abort(self):
        self.is_closed = True


def entered(connections, *some):
    for one in some:
        connections.enter(one)
    return [one.is_closed for one in some]


def test_the_oldest_of_an_address_makes_room_unless_it_was_let_in():
    connections = Connections(100, most_each=2)
    known = One("192.0.2.1", is_let_in=True)
    mine = [One("192.0.2.1") for _ in range(4)]
    assert (
        entered(connections, known, One("192.0.2.2"), *mine)
        == [False] * 2 + [True] * 2 + [False] * 2
    )
    of_one_subscriber = [One(f"2001:db8::{number}") for number in range(1, 4)]
    assert entered(connections, *of_one_subscriber) == [True, False, False]
    connections.leave(mine[3])
    assert entered(connections, One("192.0.2.1")) == [False]


def test_no_more_are_open_than_may_be_whoever_they_are():
    connections = Connections(3, ["192.0.2.9"], most_each=1)
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
