"""The guard against wrong results: small replicas of settings, trained against one process.

A replica (:mod:`tuner.guard.replica`) has the knobs of the settings and the architecture of the
model, and so few channels and ranks that CPU processes train it in seconds. How it is checked
(:mod:`tuner.guard.check`) is kept for every study of the same structure and versions.
"""
