"""The length of a lease, from which all that depends on it is derived.

A claim gives a worker its probe for so long, and each renewal for as long again. Derived from it
are the renewals and the margin of :mod:`workers.lease`, the patience of workers with a store that
does not answer, and the silence after which ranks end themselves.

Read it as ``lease.LEASE_S`` when it is needed: tests that cannot wait for a minute shorten it.
"""

# Seconds from a claim, or from a renewal, to the lease's end.
LEASE_S = 60.0
