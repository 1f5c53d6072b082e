"""Scripts for two ranks without torch, and a stand-in for the torchrun that starts them."""

import textwrap
import time
from dataclasses import replace
from pathlib import Path

import psutil

from tuner.core.configuration import Settings
from tuner.core.script import MEETING_HOST, MEETING_PORT, NODE_RANK, read_script

STAND_IN = Path(__file__).parent / "stand_in_torchrun.py"
SETTINGS = Settings(micro_batch_size=2, gradient_accumulation_steps=1)
REPORTS = """
    import os, signal, sys, time
    from tuner.integrations import report_step
    rank, micro = int(os.environ["RANK"]), int(sys.argv[1])
    for step in range(100):
        {step}
        report_step(loss=1.0, sequences=micro)
"""


def as_torchrun(command, logs):
    """Python's arguments that run the stand-in."""
    assert command.launcher[0] == "torchrun"
    nodes, on_node = command.cluster.nodes, command.cluster.gpus_per_node
    meeting = (NODE_RANK, MEETING_HOST, MEETING_PORT) if nodes > 1 else ("0", "", "")
    return (str(STAND_IN), str(nodes), str(on_node), *meeting)


def asking_script(question, folder, step="pass", *, whole="", **more):
    """The question about a script in a folder: one that does ``step`` in each, or the whole."""
    text = textwrap.dedent(whole or REPORTS.format(step=step))
    (folder / "train.py").write_text(text)
    known = {"arguments": ("{micro_batch_size}",), **more}
    return replace(question, script=read_script("train.py", folder=folder, **known))


def left(folder):
    """Processes of the script in a folder."""
    return [
        process
        for process in psutil.process_iter(["cmdline", "status"])
        if str(folder / "train.py") in (process.info["cmdline"] or ())
        and process.info["status"] != psutil.STATUS_ZOMBIE
    ]


def waiting(seconds):
    """Nobody gives up."""
    time.sleep(seconds)
    return ""
