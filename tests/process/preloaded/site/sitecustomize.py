"""Has this Python be a client of the process that has torch, if its program is one that trains.

Python imports it when it starts, from ``PYTHONPATH``: see ``Preloaded.environment``.
"""

import os
import sys

TRAINS = {
    "workers.probe",
    "workers.probe.dry",
    "torch.distributed.run",
    "accelerate.commands.accelerate_cli",
}

argv = sys.orig_argv[1:]
# launchers start scripts unbuffered
if "PRELOADED_PYTHON" in os.environ and (argv[:1] == ["-u"] or TRAINS.intersection(argv)):
    client = os.path.join(os.path.dirname(os.path.dirname(__file__)), "client.py")  # noqa: PTH118, PTH120
    address = os.environ["PRELOADED_PYTHON"]
    os.execv(sys.executable, [sys.executable, "-I", "-S", client, address, *argv])
