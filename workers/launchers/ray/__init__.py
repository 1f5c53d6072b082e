"""Ranks on the nodes of a Ray cluster: one placement group for each job, one actor for each rank.

Ray is spoken to by a process of its own (``driver.py``), which ends when its cluster does, takes
signals as it likes and prints what it wants. The worker asks it by lines of JSON (``client.py``).
"""
