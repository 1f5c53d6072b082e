"""Ways to start the ranks of a probe, behind one small interface."""
