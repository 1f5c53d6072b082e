"""Runs beside the devices: the worker, its launchers, and the probe program."""
