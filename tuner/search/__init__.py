"""Proposes the next configuration to probe: a cost model as prior, corrected by the probes.

Numbers only: configurations are rows of arrays here, and nothing is known of stores, probes or
studies. :mod:`tuner.planner` says what a study's candidates and trials are. NumPy, and Optuna as
the engine, are slow to import, so this package is imported where it is used.

- :mod:`~tuner.search.trials`: the candidates with what is predicted of them, and what was tried.
- :mod:`~tuner.search.kernel`, :mod:`~tuner.search.belief`: a Gaussian process, and with it the
  errors of predictions.
- :mod:`~tuner.search.belief`: speed, memory and success of every candidate after the trials.
- :mod:`~tuner.search.gain`: the expected gain of a probe, and the most promising candidate.
- :mod:`~tuner.search.sampler`: knobs as Optuna's parameters, and a sampler for anybody's study.
- :mod:`~tuner.search.engine`: a study replayed as an Optuna study, and asked.
"""
