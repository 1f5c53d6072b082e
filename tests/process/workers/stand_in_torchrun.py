"""Starts the ranks of a script as torchrun does, each in a session of its own, without torch.

stand_in_torchrun.py ranks --script ...: what follows the launcher's own options is run.
"""

import os
import subprocess
import sys
import time


def main():
    """Start the ranks; 1 if one fails, else 0."""
    _, count, *script = sys.argv
    ranks = [
        subprocess.Popen(
            [sys.executable, *script],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": count},
            start_new_session=True,
        )
        for rank in range(int(count))
    ]
    while any(rank.poll() is None for rank in ranks):
        if any(rank.poll() for rank in ranks):  # one has failed: the others are ended
            for rank in ranks:
                rank.terminate()
        time.sleep(0.02)
    return int(any(rank.returncode for rank in ranks))


if __name__ == "__main__":
    sys.exit(main())
