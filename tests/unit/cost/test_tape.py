from tuner.core.measurement import Phase
from tuner.cost.memory.wrapping import ACTIVATIONS, PARAMETERS, TEMPORARIES, Tape


def test_the_highest_moment_depends_on_the_micro_batch() -> None:
    tape = Tape()
    tape.fixed(PARAMETERS, 100)
    tape.sequence(ACTIVATIONS, 10)
    tape.fixed(TEMPORARIES, 50)
    tape.fixed(TEMPORARIES, -50)
    tape.sequence(TEMPORARIES, 5)
    tape.sequence(TEMPORARIES, -5)
    moments = tape.moments()
    assert {moment.phase for moment in moments} == {Phase.FORWARD}
    assert max(m.total(1) for m in moments) == 100 + 10 + 50
    assert max(m.total(16) for m in moments) == 100 + 16 * 15
    large = max(moments, key=lambda moment: moment.total(16))
    assert large.breakdown(16) == {"parameters": 100, "activations": 160, "temporaries": 80}


def test_a_phase_holds_what_was_there_when_it_began() -> None:
    tape = Tape()
    tape.sequence(ACTIVATIONS, 10)
    tape.enter(Phase.BACKWARD)
    tape.sequence(ACTIVATIONS, -10)
    by_phase = {moment.phase: moment.total(2) for moment in tape.moments()}
    assert by_phase == {Phase.FORWARD: 20, Phase.BACKWARD: 20}


def test_only_the_highest_are_kept() -> None:
    tape = Tape()
    for size in (3, 9, 4):
        tape.fixed(TEMPORARIES, size)
        tape.fixed(TEMPORARIES, -size)
    assert [moment.fixed for moment in tape.moments()] == [9]
