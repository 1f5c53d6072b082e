"""Finds the fastest training settings that fit in memory, before a distributed job starts.

This package thinks: it imports neither torch nor a web framework, so it is quick to import.
"""
