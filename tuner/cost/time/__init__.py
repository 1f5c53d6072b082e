"""Seconds of a training step by arithmetic."""
