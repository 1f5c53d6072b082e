"""The figures that ``nvidia-smi`` gives of GPUs: none where it is missing, slow or refuses."""

import contextlib
import subprocess
from collections.abc import Sequence

# Seconds to wait for it: a probe takes seconds, and does without its answer.
TIMEOUT_S = 5.0
# The same for clocks, for which every probe asks, twice where there is no answer.
CLOCKS_TIMEOUT_S = 2.0
# Its words for a figure that a GPU or a driver does not have.
UNKNOWN = frozenset({"[N/A]", "[Not Supported]", "[Unknown Error]", "N/A", ""})
# Why clocks are lower than they could be: nvmlClocksEventReasons of NVML's nvml.h, by nvidia-smi's
# names. Left out are settings (0x02 applications_clocks_setting, 0x100 display clocks).
THROTTLE = {
    0x04: "sw_power_cap",
    0x08: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
}
# The one of them that says that nothing runs, and clocks are on their way down.
GPU_IDLE = 0x01
# The bit mask's name, and the one before driver 535.
REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")


def ask(
    uuids: Sequence[str], *figures: str, timeout_s: float = TIMEOUT_S
) -> dict[str, dict[str, str]]:
    """Asks for figures of some GPUs.

    Returns:
        By UUID, for the GPUs that it answers for, the figures that are known, by name, as written:
        without units.
    """
    ids = ",".join(f"GPU-{uuid}" for uuid in uuids)
    lines = rows(f"--id={ids}", f"--query-gpu=uuid,{','.join(figures)}", timeout_s=timeout_s)
    table = [[value.strip() for value in line.split(",")] for line in lines]
    return {
        gpu.removeprefix("GPU-"): {
            name: value for name, value in zip(figures, values, strict=True) if value not in UNKNOWN
        }
        for gpu, *values in table
        if gpu.removeprefix("GPU-") in uuids and len(values) == len(figures)
    }


def clocks(uuids: Sequence[str]) -> dict[str, dict[str, object]]:
    """Asks what some GPUs run at, and what slows them.

    Returns:
        By UUID: ``sm_mhz``, ``power_w``, ``temperature_c``, those that are known; ``throttle``,
        names of :data:`THROTTLE`; and ``idle``, where the GPU was idle: then its clock says nothing
        of work.
    """
    figures = {"clocks.sm": "sm_mhz", "power.draw": "power_w", "temperature.gpu": "temperature_c"}
    told: dict[str, dict[str, str]] = {}
    for reasons in REASONS:
        told = told or ask(uuids, *figures, reasons, timeout_s=CLOCKS_TIMEOUT_S)
    found: dict[str, dict[str, object]] = {}
    for uuid, values in told.items():
        known = found[uuid] = dict[str, object]()
        for figure, name in figures.items():
            with contextlib.suppress(KeyError, ValueError):
                known[name] = float(values[figure])
        with contextlib.suppress(ValueError):
            mask = int(next((values[name] for name in REASONS if name in values), ""), 16)
            known["throttle"] = [reason for bit, reason in THROTTLE.items() if mask & bit]
            if mask & GPU_IDLE:
                known["idle"] = True
    return found


def rows(*query: str, timeout_s: float = TIMEOUT_S) -> list[str]:
    """Asks for a table: its lines, with neither names nor units; none where it fails."""
    try:
        answer = subprocess.run(
            ["nvidia-smi", *query, "--format=csv,noheader,nounits"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    if answer.returncode != 0:
        return []
    return [line.strip() for line in answer.stdout.splitlines() if line.strip()]
