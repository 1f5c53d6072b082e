"""Starts a node's ranks of a script as torchrun does, each in a session of its own, without torch.

stand_in_torchrun.py NODES RANKS NODE HOST PORT --script ...: what follows the launcher's own
options is run. The first of several nodes listens where they meet, and ranks start when all have
come, as with torchrun's static rendezvous.
"""

import os
import socket
import subprocess
import sys
import time


def meet(nodes, node, host, port):
    """Wait until all nodes are there."""
    if node == 0:
        with socket.create_server((host, port)) as server:
            peers = [server.accept()[0] for _ in range(nodes - 1)]
            for peer in peers:
                peer.sendall(b"all")
                peer.close()
        return
    while True:
        try:
            with socket.create_connection((host, port)) as peer:
                if peer.recv(3):
                    return
        except OSError:
            time.sleep(0.02)


def main():
    """Start the ranks; 1 if one fails, else 0."""
    _, nodes, count, node, host, port, *script = sys.argv
    nodes, count, node = int(nodes), int(count), int(node)
    if nodes > 1:
        meet(nodes, node, host, int(port))
    place = {"WORLD_SIZE": str(nodes * count), "GROUP_RANK": str(node)}
    ranks = [
        subprocess.Popen(
            [sys.executable, *script],
            env={**os.environ, **place, "RANK": str(node * count + rank), "LOCAL_RANK": str(rank)},
            start_new_session=True,
        )
        for rank in range(count)
    ]
    while any(rank.poll() is None for rank in ranks):
        if any(rank.poll() for rank in ranks):  # one has failed: the others are ended
            for rank in ranks:
                rank.terminate()
        time.sleep(0.02)
    return int(any(rank.returncode for rank in ranks))


if __name__ == "__main__":
    sys.exit(main())
