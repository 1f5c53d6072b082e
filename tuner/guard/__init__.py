"""The guard against wrong results: small twins of settings, trained against one process.

A twin (:mod:`tuner.guard.replica`) has the knobs of the settings and the architecture of the model,
and so few channels and ranks that CPU processes train it in seconds. Its verdict
(:mod:`tuner.guard.check`) is kept for every study of the same structure and versions.
"""
