"""The probe program's own step as rank 0 of N, without a device, without values, without peers.

Tensors are fake and the process group is fake; memory is counted by storage. Nothing in here
is a second copy of the stack or of the step.
"""
