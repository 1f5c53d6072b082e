"""Asking for suggestions and predictions: what the command line and Python's callers share.

Values are read (:mod:`tuner.asking.wanted`) into a checked question on its terms
(:mod:`tuner.asking.inquiry`), which is answered here by a worker of its own
(:mod:`tuner.asking.local`) or by a service (:mod:`tuner.asking.remote`). :func:`tuner.suggest` and
:func:`tuner.predict` are :mod:`tuner.asking.suggesting` and :mod:`tuner.asking.predicting`.
"""
