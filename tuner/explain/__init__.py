"""Explains answers: facts (:mod:`~tuner.explain.facts`), and English made of them.

``answer(study)`` is in :mod:`tuner.explain.known`, which imports the planner, and so NumPy.
"""
