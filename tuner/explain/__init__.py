"""Explains answers: facts (:mod:`~tuner.explain.facts`), and English made of them."""

from tuner.explain.known import answer, best_known, is_forecast, require_best, why_none

__all__ = ["answer", "best_known", "is_forecast", "require_best", "why_none"]
