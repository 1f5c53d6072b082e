"""Words that cross from the probe program, which imports nothing of ours, into ``tuner``."""

from tuner.core.measurement import Category, Phase
from tuner.cost.time.collectives import Overlap
from workers.probe import collectives
from workers.probe.dry import ledger


def test_memory_is_for_the_same_things_on_both_sides():
    assert {str(c) for c in ledger.Category} == {str(c) for c in Category}


def test_collectives_are_hidden_by_the_same_things_on_both_sides():
    assert {str(o) for o in collectives.Overlap} == {str(o) for o in Overlap}


def test_the_loss_is_a_phase_of_the_same_name():
    assert str(Phase.LOSS) == ledger.LOSS
