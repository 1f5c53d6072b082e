"""Explains answers: facts (:mod:`~tuner.explain.facts`), each with its English.

``answer(study)`` is in :mod:`tuner.explain.known`, which imports the planner, and so NumPy.
"""
