"""Rehearsals: the user's own script as one rank of many, on a machine without a GPU."""

# What a rank leaves in its folder: its record, and torch's own snapshot of its memory.
RECORD = "record.json"
SNAPSHOT = "snapshot.pickle"
