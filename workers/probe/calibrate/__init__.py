"""Rates of a rank's device and links, timed case by case: ``python -m workers.probe --calibrate``.

Every rank times the same cases at the same time, since ranks share memory, power and links. It
returns raw seconds; what follows from them is not decided here.
"""
