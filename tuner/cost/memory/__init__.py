"""Bytes of a training step by arithmetic."""
