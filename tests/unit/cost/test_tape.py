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
