"""What users are told of a dry run's notes."""

from tuner.dryrun import told
from tuner.dryrun.plan import OF_A_PART, OF_EVERY_ONE


def test_notes_of_parts_are_one_clause_and_what_holds_always_is_left_out() -> None:
    parts = [f"micro-batch 0, forward, layer {n}: {OF_A_PART}: peaks alone" for n in range(26)]
    found = told(["ddp_buckets: by arithmetic", f"cuda: {OF_EVERY_ONE}", *parts])
    assert len(found) == 2
    assert found[0] == "ddp_buckets: by arithmetic"
    assert found[1].startswith("in 26 parts of the step the order of allocations")
    assert told(parts[:1])[0].startswith("in one part of the step")
    assert told([f"cuda: {OF_EVERY_ONE} with foreach optimizers"]) == ()
