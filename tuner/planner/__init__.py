"""Plans the next probe, when to stop, and the answer: pure functions of a study.

The planner keeps nothing between two calls. It reads the study's probes, says what is known
under today's memory limit, and decides; whoever calls it enters the decision into the store.
:mod:`tuner.explain` makes facts and words of what it knows.
"""
