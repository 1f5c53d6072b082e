"""Asking for suggestions and predictions: what the command line and Python's callers share.

Values are read (:mod:`tuner.client.request`) into a checked question within its limits
(:mod:`tuner.client.place`), which is answered here by a worker of its own
(:mod:`tuner.client.local`) or by a service (:mod:`tuner.client.remote`). :func:`tuner.suggest` and
:func:`tuner.predict` are :mod:`tuner.client.suggest` and :mod:`tuner.client.predict`.
"""
