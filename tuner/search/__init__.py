"""Which settings to probe next: a cost model as prior, corrected by what was probed.

Numbers only: settings are rows of arrays here, and nothing is known of stores, probes or studies.
:mod:`tuner.planner` says what a study's candidates and trials are. NumPy, and Optuna as the engine
that asks and is told; both are slow to import, so this package is imported where it is used.

- :mod:`~tuner.search.prior`: the candidates with what is predicted of them, before any trial.
- :mod:`~tuner.search.trials`: what was tried, here and in earlier studies.
- :mod:`~tuner.search.belief`: what is believed after both: speed, memory, and success.
- :mod:`~tuner.search.improvement`: what a probe is expected to gain.
- :mod:`~tuner.search.proposal`: the most promising candidate.
- :mod:`~tuner.search.sampler`: Optuna's sampler that proposes the most promising candidate.
"""
