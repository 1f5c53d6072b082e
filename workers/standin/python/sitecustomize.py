"""Imported by every Python that is started on the stand-in's GPUs, before its program.

Two modules are changed as they are imported, if they are. Nothing is imported for it.
"""

import ctypes
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType


def no_packed_sequences(masking: ModuleType) -> None:
    """Make transformers see no packed sequences, as in a step whose numbers are real.

    Positions that no kernel has counted are all 0, which looks like as many sequences of one
    token, and a mask would be made that no real step has.
    """
    find = getattr(masking, "find_packed_sequence_indices", None)
    if find is not None:
        setattr(masking, "find_packed_sequence_indices", lambda position_ids: None)  # noqa: B010


def tell_phases(tracker: ModuleType) -> None:
    """Tell the stand-in the probe's phases, so that it can lose a device in a chosen one."""
    tell = ctypes.CDLL(None).standin_phase
    plain = tracker.Phase.__setattr__

    def set_and_tell(phase: object, name: str, value: object) -> None:
        plain(phase, name, value)
        if name == "name":
            tell(str(value).encode())

    tracker.Phase.__setattr__ = set_and_tell


class Changer(importlib.abc.MetaPathFinder):
    """Finds a module as Python would, and changes it once it is loaded."""

    def __init__(self, name: str, change: Callable[[ModuleType], None]) -> None:
        self.name = name
        self.change = change

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The usual spec of the module, with a loader that changes it afterwards."""
        if name != self.name:
            return None
        sys.meta_path.remove(self)  # or it would find itself
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_change(module: ModuleType) -> None:
                load(module)
                self.change(module)

            setattr(spec.loader, "exec_module", load_and_change)  # noqa: B010
        return spec


if __name__ == "sitecustomize":  # a rehearsal has use of Changer alone
    sys.meta_path.insert(0, Changer("transformers.masking_utils", no_packed_sequences))
    if os.environ.get("STANDIN_FAIL_PHASE"):
        sys.meta_path.insert(0, Changer("workers.probe.tracker", tell_phases))
