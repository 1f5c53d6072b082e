"""Ranks on the nodes of a Ray cluster: a placement group for each job, an actor for each rank."""
