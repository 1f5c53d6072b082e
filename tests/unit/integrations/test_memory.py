"""The resident set of a process, as the kernel counts it."""

import subprocess
import sys

GROWS = """
from tuner.integrations import ScriptMemory, resident_bytes
before = resident_bytes()
memory = ScriptMemory()
held = bytearray(b"x") * (64 << 20)
memory.end_step(steady=True)
del held
memory.end_step(steady=True)
values = memory.values()
print(values["allocated_bytes"] - before, values["overhead_bytes"], values["by_category"])
"""


def test_the_peak_is_that_of_this_process_alone():
    large = bytearray(b"x") * (256 << 20)  # a child's peak does not begin with its parent's
    done = subprocess.run([sys.executable, "-c", GROWS], capture_output=True, text=True, check=True)
    grown, overhead, held = done.stdout.split()
    assert 60 << 20 < int(grown) < 80 << 20
    assert (overhead, held) == ("0", "{}")
    assert len(large) == 256 << 20
