"""Functions that a user's training script imports, so that ``tuner suggest --script`` can probe it.

    from tuner.integrations import report_step

    for batch in batches:
        ...
        optimizer.step()
        report_step(loss=loss)

Outside of a probe nothing is done: the script runs as without it. In a probe (``TUNER_PROBE`` names
its folder then) steps are timed, memory is read, and the process ends after enough steps, with exit
code 0; nothing that follows is run, so no checkpoint is written. Imports the standard library only.
"""

from tuner.integrations.reporting import in_probe, report_step

__all__ = ["in_probe", "report_step"]
