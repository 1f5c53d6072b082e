"""Measuring a cluster's rates on its own devices (``python -m workers.calibrate``)."""
