"""Probes of the user's own script: launched as the user would, watched, and checked."""
