"""Whether a configuration that exists still fits: files of launchers, read back.

Each format has a reader (:mod:`tuner.checking.accelerate`, ...), which takes what the file says
(:class:`tuner.checking.found.Found`) and refuses what it cannot take. The rest is asked for
(:mod:`tuner.checking.cases`), and the whole is predicted, or known from probes
(:mod:`tuner.checking.checked`).
"""
