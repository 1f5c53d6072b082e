import json
import signal
from dataclasses import replace

from tuner.core.measurement import RAN, Collective, Measurement, Memory, Outcome, OutOfMemory
from workers.launchers.base import Ended, RankEnd, Why
from workers.measuring.merge import merge
from workers.measuring.records import BadRecord, RankRecord

MISSING = BadRecord(why="is missing", missing=True)
TORN = BadRecord(why="is not JSON, or cut short")
SHORTAGE = OutOfMemory(
    phase="backward",
    requested_bytes=2**30,
    allocated_bytes=3 * 2**30,
    reserved_bytes=3 * 2**30,
    limit_bytes=4 * 10**9,
)
LOGS = {0: "log 0", 1: "log 1"}


def memory(rank, overhead_bytes=0):
    return Memory(
        allocated_bytes=100 + rank,
        allocated_low_bytes=90 + rank,
        reserved_bytes=120 + rank,
        device_bytes=500 + rank,
        overhead_bytes=overhead_bytes,
        by_phase={"forward": 100 + rank},
        by_category={"parameters": rank},
    )


def ok(rank, **fields):
    known = {
        "rank": rank,
        "outcome": Outcome.OK,
        "phase": "finish",
        "error": "",
        "ended_at": 100.0 + rank,
        "memory": memory(rank),
        "step_times_s": {1: (0.3, 0.2 + rank), 2: (0.5 - rank / 10, 0.6)},
        "collectives": (Collective(op="all_reduce", axis="dp", phase="x", count=rank, bytes=1),),
        "tracked_accumulation": 2,
        "reducing_micro_batches": 2,
        "losses": (2.0 + rank, 1.0),
        "gradient_norms": (3.0,),
        "optimizer_steps": 5,
        "expected_optimizer_steps": 5,
        "versions": {"torch": "2.13.0"},
        "hardware": {"device": "cpu"},
        "attention": {"flash": 4},
    }
    return RankRecord(**{**known, **fields})


def bad(rank, outcome, at=100.0, **fields):
    failed = {"memory": None, "step_times_s": {}, "error": "Error: words", "phase": "forward"}
    return ok(rank, outcome=outcome, ended_at=at, **{**failed, **fields})


def oom(rank, at=100.0):
    return bad(rank, Outcome.OOM, at, oom=SHORTAGE)


def end(rank, code=0, *, at=101.0, stopped=False):
    return RankEnd(rank=rank, code=code, ended_at=at, stopped=stopped)


def merged(ends, records, why=Why.ENDED, kills=0):
    ends = tuple(replace(one, host_oom_kills=kills) for one in ends)
    ended = Ended(why=why, ranks=ends, wall_s=12.0)
    measurement = merge(ended, records, LOGS, deadline_s=600.0)
    assert Measurement.from_dict(json.loads(json.dumps(measurement.as_dict()))) == measurement
    json.dumps(measurement.as_dict(), allow_nan=False)
    return measurement


KILLED, STOPPED = -signal.SIGKILL, -signal.SIGTERM
COMMUNICATION = Outcome.COMMUNICATION_ERROR

DONE, FAILED = [end(0), end(1)], [end(0, 10), end(1, 10)]
# Rank 0 failed or was done, and the other had to be stopped.
HUNG, LATE = ([end(0, code), end(1, STOPPED, stopped=True)] for code in (10, 0))
ABORTED, ONE_DIED = -signal.SIGABRT, "rank 0 in forward: Error: words"
EARLY, CRASHED, OOM = Outcome.STOPPED_EARLY, Outcome.CRASHED, Outcome.OOM
NO_FINITE = bad(0, Outcome.NON_FINITE, losses=(2.0, float("nan"), 1.0))

# What happened; the ranks' ends and records, why they ended, how many processes the kernel killed
# for host memory; the outcome, and how its detail begins.
# fmt: off
CASES = {
    "all ok": (DONE, [ok(0), ok(1)], Why.ENDED, 0, Outcome.OK, ""),
    "one out of memory explains the others": (
        FAILED, [bad(0, COMMUNICATION, 99.0), oom(1, 99.5)], Why.ENDED, 0, OOM,
        "rank 1 ran out of memory in backward: 1.00 GiB more than 3.00 GiB in use, of 3.73 GiB"
        " allowed (rank 0 failed too)"),
    "the first of two out of memory": (
        FAILED, [oom(0, 99.5), oom(1, 99.0)], Why.ENDED, 0, OOM, "rank 1 ran out"),
    "out of memory just before the deadline": (
        HUNG, [oom(0), MISSING], Why.DEADLINE, 0, OOM, "rank 0 ran out of memory"),
    "a report of failure is believed though the rank died of a signal after it": (
        [end(0, ABORTED), end(1, 10)], [oom(0), bad(1, COMMUNICATION)], Why.ENDED, 0, OOM,
        "rank 0 ran out of memory"),
    "a signal explains the others": (
        [end(0, -signal.SIGSEGV, at=100.1), end(1, 10)], [MISSING, bad(1, COMMUNICATION, 100.0)],
        Why.ENDED, 0, CRASHED,
        "rank 0 was ended by SIGSEGV; its record is missing (rank 1 failed too)"),
    "a signal that was seen after another rank had crashed for it": (
        [end(0, 10), end(1, KILLED, at=100.2)], [bad(0, CRASHED, 100.0), MISSING],
        Why.ENDED, 0, CRASHED,
        "rank 1 was ended by SIGKILL; its record is missing (rank 0 failed too)"),
    "the kernel's kill that was seen after another rank had crashed for it": (
        [end(0, 10), end(1, KILLED, at=100.2)], [bad(0, CRASHED, 100.0), MISSING],
        Why.ENDED, 1, Outcome.HOST_OOM, "rank 1 was ended by SIGKILL"),
    "a library that aborted when another rank had failed": (
        [end(0, ABORTED, at=100.2), end(1, 10)], [MISSING, bad(1, CRASHED, 100.0)],
        Why.ENDED, 0, CRASHED, "rank 1 in forward: Error: words (rank 0 failed too)"),
    "out of memory that was reported after a library had aborted": (
        [end(0, ABORTED, at=99.0), end(1, 10)], [MISSING, oom(1, 100.0)],
        Why.ENDED, 0, OOM, "rank 1 ran out of memory"),
    "killed by the kernel for host memory": (
        [end(0, KILLED), end(1, 10)], [MISSING, bad(1, COMMUNICATION, 100.0)],
        Why.ENDED, 1, Outcome.HOST_OOM, "rank 0 was ended by SIGKILL"),
    "killed by us while the kernel killed something else": (
        [end(0, 10), end(1, KILLED, stopped=True)], [bad(0, CRASHED), MISSING],
        Why.PEER_FAILED, 1, CRASHED, ONE_DIED),
    "only communication failed": (
        FAILED, [bad(0, COMMUNICATION, 100.0), bad(1, COMMUNICATION, 99.0)], Why.ENDED, 0,
        COMMUNICATION, "rank 1 in forward: Error: words (rank 0 failed too)"),
    "one failed to communicate, the other hung": (
        HUNG, [bad(0, COMMUNICATION), MISSING], Why.PEER_FAILED, 0, COMMUNICATION, ONE_DIED),
    "the settings were refused": (
        FAILED, [bad(0, Outcome.INVALID), bad(1, Outcome.INVALID)], Why.ENDED, 0,
        Outcome.INVALID, ONE_DIED),
    "the loss is not finite": (
        FAILED, [NO_FINITE, bad(1, Outcome.NON_FINITE)], Why.ENDED, 0,
        Outcome.NON_FINITE, "rank 0 in forward"),
    "a device is lost, and the other rank loses its peer": (
        FAILED, [bad(0, COMMUNICATION, at=99.0), bad(1, Outcome.DEVICE_LOST)], Why.ENDED, 0,
        Outcome.DEVICE_LOST, "rank 1 in forward"),
    "no record and exit code 1": (
        [end(0, 1), end(1, 1)], [MISSING, MISSING], Why.ENDED, 0, CRASHED,
        "rank 0 ended with exit code 1; its record is missing"),
    "a record cut short": (
        DONE, [ok(0), TORN], Why.ENDED, 0, CRASHED,
        "rank 1 ended with exit code 0; its record is not JSON, or cut short"),
    "a good record and then a signal": (
        [end(0), end(1, ABORTED)], [ok(0), ok(1)], Why.ENDED, 0, CRASHED,
        "rank 1 was ended by SIGABRT after its steps"),
    "a real-time signal has no name": (
        [end(0, -40), end(1)], [MISSING, ok(1)], Why.ENDED, 0, CRASHED,
        "rank 0 was ended by signal 40"),
    "the worker was not heard": (
        [end(0, 111), end(1, 111)], [MISSING, MISSING], Why.ENDED, 0, CRASHED,
        "rank 0 ended because its worker was stopped"),
    "one hung": (
        LATE, [ok(0), MISSING], Why.DEADLINE, 0, Outcome.TIMEOUT, "rank 1 not done after 600 s"),
    "all done, and one hung in its end": (LATE, [ok(0), ok(1)], Why.DEADLINE, 0, Outcome.OK, ""),
    "cancelled": (
        HUNG, [MISSING, MISSING], Why.CANCELLED, 0, Outcome.CANCELLED, "cancelled after 12.0 s"),
    "all ranks agreed to end early": (
        DONE, [ok(0, outcome=EARLY), ok(1, outcome=EARLY)], Why.ENDED, 0, EARLY, ""),
    "one rank alone ended early": (
        DONE, [ok(0), ok(1, outcome=EARLY)], Why.ENDED, 0, CRASHED,
        "rank 1 ended as stopped_early, rank 0 as ok"),
    "too few optimizer steps": (
        DONE, [ok(0), ok(1, optimizer_steps=4)], Why.ENDED, 0, Outcome.WRONG_RESULT,
        "rank 1: the optimizer stepped 4 times instead of 5"),
    "frozen weights that moved": (
        DONE, [ok(0, moved_frozen=0), ok(1, moved_frozen=2)], Why.ENDED, 0, Outcome.WRONG_RESULT,
        "rank 1: 2 frozen parameters have changed"),
    "ranks timed different steps": (
        DONE, [ok(0), ok(1, step_times_s={1: (0.3,), 2: (0.5, 0.6)})], Why.ENDED, 0, CRASHED,
        "rank 1 timed other steps than rank 0"),
}
# fmt: on


def test_outcomes():
    for case in CASES.values():
        ends, records, why, kills, outcome, detail = case
        measurement = merged(ends, records, why, kills)
        assert measurement.outcome is outcome
        assert measurement.detail.startswith(detail)
        assert bool(measurement.detail) == (outcome not in RAN)
        assert measurement.log_tails == ({} if outcome in RAN else LOGS)
        assert (measurement.oom is not None) == (outcome is Outcome.OOM)
        complete = outcome in RAN or outcome is Outcome.WRONG_RESULT
        assert (measurement.memory is not None) == complete
        assert bool(measurement.step_times_s) == complete
        assert measurement.wall_s == 12.0
        assert measurement.device_s == 24.0


def test_every_outcome_that_a_run_can_have_is_among_the_cases():
    elsewhere = {Outcome.WORKER_LOST, Outcome.KNOB_INACTIVE}  # by the store; by check_knobs
    assert {case[4] for case in CASES.values()} == set(Outcome) - elsewhere


def test_a_whole_measurement():
    measurement = merged([end(0), end(1)], [ok(0), ok(1)])
    assert measurement.memory.allocated_bytes == 101
    assert measurement.memory.allocated_low_bytes == 91
    assert measurement.memory.device_bytes == 501
    assert measurement.memory.per_rank_bytes == (100, 101)
    assert measurement.step_times_s == {1: (0.3, 1.2), 2: (0.5, 0.6)}
    assert measurement.losses == (2.0, 1.0)
    assert measurement.collectives[0].count == 0
    assert measurement.tracked_accumulation == 2
    assert measurement.optimizer_steps == measurement.expected_optimizer_steps == 5
    assert measurement.versions == {"torch": "2.13.0"}
    assert measurement.hardware == {"device": "cpu"}
    assert measurement.attention == {"flash": 4}
    assert Measurement.from_dict(measurement.as_dict()) == measurement


def notes(*clocks):
    """Of ranks whose GPUs ended at these clocks; no clocks where there is no nvidia-smi."""
    hardware = [{"device": "x", **({"clocks": one} if one else {})} for one in clocks]
    ranks = range(len(clocks))
    found = merged([end(n) for n in ranks], [ok(n, hardware=hardware[n]) for n in ranks])
    plain = merged([end(n) for n in ranks], [ok(n, hardware={"device": "x"}) for n in ranks])
    assert plain.notes == ()
    assert replace(found, notes=(), hardware={}) == replace(plain, hardware={})
    assert found.hardware == hardware[0]
    return found.notes


def mhz(clock, *throttle, **more):
    return {"sm_mhz": clock, "throttle": list(throttle), **more}


def test_clocks_that_are_far_apart_are_noted():
    assert notes({}, {}) == ()
    assert notes(mhz(1980), mhz(1881)) == ()  # 5%
    assert notes(mhz(1980), mhz(1880), mhz(1700)) == (
        "SM clocks differ by 14%: 1700 MHz on rank 2, 1980 MHz on rank 0",
    )
    assert notes({"power_w": 300.0}, mhz(1200)) == ()
    assert notes(mhz(0), mhz(0)) == ()
    assert notes(mhz(1980), mhz(345, idle=True)) == ()  # it was asked too late


def test_what_slowed_gpus_is_noted():
    capped = mhz(1500, "sw_power_cap", "hw_slowdown", "sync_boost")
    assert notes(capped, capped) == ()
    hot = mhz(1500, "sw_thermal_slowdown", "hw_power_brake_slowdown")
    assert notes(mhz(1500), hot, mhz(1490, "sw_thermal_slowdown")) == (
        "ranks 1, 2: GPU slowed down after the last step (sw_thermal_slowdown), so steps may"
        " have taken longer than the settings need",
        "rank 1: GPU slowed down after the last step (hw_power_brake_slowdown), so steps may"
        " have taken longer than the settings need",
    )


def test_the_worst_rank_counts_what_lies_outside_the_allocator():
    records = [ok(0, memory=memory(0, overhead_bytes=50)), ok(1)]
    measurement = merged([end(0), end(1)], records)
    assert measurement.memory.allocated_bytes == 100
    assert measurement.memory.per_rank_bytes == (100, 101)


def test_where_memory_ran_out():
    measurement = merged([end(0, 10), end(1, 10)], [bad(0, COMMUNICATION), oom(1)])
    assert measurement.oom.rank == 1
    assert measurement.oom.phase == "backward"
    assert measurement.oom.needed_bytes == 4 * 2**30


def test_the_phase_is_of_the_rank_that_failed():
    ends = [end(0, 10, at=102.0), end(1, 10)]
    failed = [bad(0, Outcome.COMMUNICATION_ERROR), bad(1, Outcome.CRASHED, phase="build")]
    assert merged(ends, failed).phase == "build"
    killed = [end(0, 10, at=102.0), end(1, -signal.SIGSEGV)]
    assert merged(killed, [bad(0, Outcome.COMMUNICATION_ERROR), MISSING]).phase == ""
    assert merged([end(0), end(1)], [ok(0), ok(1)]).phase == ""


def test_losses_are_kept_up_to_the_first_that_is_not_finite():
    ends, records, *_ = CASES["the loss is not finite"]
    assert merged(ends, records).losses == (2.0,)


def test_what_others_end_is_told_in_their_words():
    for why, outcome in [(Why.NODE_LOST, Outcome.DEVICE_LOST), (Why.TAKEN_AWAY, Outcome.CRASHED)]:
        ends = (end(0, -15, stopped=True), end(1, -9, stopped=True))
        ended = Ended(why=why, ranks=ends, wall_s=12.0, detail="node n2 went down")
        found = merge(ended, (MISSING, MISSING), {}, deadline_s=60.0)
        assert (found.outcome, found.detail) == (outcome, "node n2 went down")
        broken = (bad(0, Outcome.COMMUNICATION_ERROR), MISSING)
        assert merge(ended, broken, {}, deadline_s=60.0).outcome is outcome
        short = merge(ended, (oom(0), MISSING), {}, deadline_s=60.0)
        assert short.outcome is Outcome.OOM, "which was so before"


def test_of_nodes_those_that_lost_a_device_are_told():
    nodes = ("GPU-0", "GPU-1", "n1/cpu"), ("GPU-2", "GPU-3", "n2/cpu")
    ranks = tuple(end(rank, -9, stopped=True) for rank in range(4))
    nothing = [MISSING] * 4
    told = [MISSING, bad(1, Outcome.DEVICE_LOST), MISSING, MISSING]
    for lost, records, devices in [((1,), nothing, nodes[1]), ((), told, nodes[0]),
                                   ((), nothing, ())]:  # fmt: skip
        ended = Ended(
            why=Why.NODE_LOST, ranks=ranks, wall_s=12.0, lost_nodes=lost, node_devices=nodes
        )
        found = merge(ended, records, {}, deadline_s=60.0)
        assert (found.outcome, found.lost_devices) == (Outcome.DEVICE_LOST, devices)
        assert Measurement.from_dict(found.as_dict()) == found
        other = merge(replace(ended, why=Why.TAKEN_AWAY), nothing, {}, deadline_s=60.0)
        assert (other.outcome, other.lost_devices) == (CRASHED, ())


def test_what_a_node_that_is_well_has_too_is_not_lost():
    """Two nodes may be containers of one machine, whose cores they share."""
    ends = (end(0, -9, stopped=True), end(1, -9, stopped=True))
    devices = (("GPU-0", "here/cpu"), ("GPU-1", "here/cpu"))
    ended = Ended(why=Why.NODE_LOST, ranks=ends, wall_s=1.0, lost_nodes=(1,), node_devices=devices)
    assert merge(ended, (MISSING, MISSING), {}, deadline_s=60.0).lost_devices == ("GPU-1",)
