"""A Ray cluster of several nodes on this machine, each a raylet with its workers.

    python -P cluster.py NODES

Made as Ray's own tests make one, in a process of its own: Ray keeps much for a whole process. It
says ``HOST:PORT`` of the cluster and follows lines of its standard input: ``kill`` kills the
raylet of the last node without warning, ``add`` starts another node; both are answered by a line.
With the end of its input it ends all of them.
"""

import os
import sys

from ray.cluster_utils import Cluster

GPUS = 2
"""Of each node, and made up: no driver shows them."""


def add_node(cluster):
    number = len(cluster.list_all_nodes()) + 2
    return cluster.add_node(
        num_cpus=2,
        num_gpus=GPUS,
        object_store_memory=80 * 2**20,
        include_dashboard=False,
        node_ip_address=f"127.0.0.{number}",
    )


def main():
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # Ray prints there
    cluster = Cluster()
    nodes = [add_node(cluster) for _ in range(int(sys.argv[1]))]
    print(cluster.address, file=answers)
    for line in sys.stdin:
        if line == "kill\n":
            process = nodes.pop().all_processes["raylet"][0].process
            process.kill()
            process.wait()  # Ray's workers look whether it is there
        else:
            nodes.append(add_node(cluster))
        print("done", file=answers)
    cluster.shutdown()


main()
