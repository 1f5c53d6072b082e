"""What ``nvidia-smi`` says of GPUs: nothing where it is missing, slow or refuses."""

import contextlib
import subprocess

TIMEOUT_S = 5.0
"""To wait for it: a probe takes seconds, and does without its answer."""
CLOCKS_TIMEOUT_S = 2.0
"""The same for clocks, for which every probe asks, twice where there is no answer."""
UNKNOWN = frozenset({"[N/A]", "[Not Supported]", "[Unknown Error]", "N/A", ""})
"""Its words for a figure that a GPU or a driver does not have."""
THROTTLE = {
    0x04: "sw_power_cap",
    0x08: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
}
"""Why clocks are lower than they could be: nvmlClocksEventReasons of NVML's nvml.h, by nvidia-smi's
names. Left out are settings (0x02 applications_clocks_setting, 0x100 display clocks)."""
GPU_IDLE = 0x01
"""The one of them that says that nothing runs, and clocks are on their way down."""
REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
"""The bit mask's name, and the one before driver 535."""


def ask(uuid: str, *figures: str, timeout_s: float = TIMEOUT_S) -> dict[str, str]:
    """Ask for figures of one GPU.

    Args:
        uuid: of the GPU, without the leading ``GPU-``, as torch has it.
        figures: names of ``nvidia-smi --help-query-gpu``. A driver that does not know one of them
            answers none.
        timeout_s: seconds to wait.

    Returns:
        Those that are known, by name, as written: without units.
    """
    lines = rows(f"--id=GPU-{uuid}", f"--query-gpu={','.join(figures)}", timeout_s=timeout_s)
    values = [value.strip() for value in lines[0].split(",")] if len(lines) == 1 else []
    if len(values) != len(figures):
        return {}
    return {
        name: value for name, value in zip(figures, values, strict=True) if value not in UNKNOWN
    }


def clocks(uuid: str) -> dict[str, object]:
    """Ask what one GPU runs at, and what slows it.

    Args:
        uuid: as of :func:`ask`.

    Returns:
        ``sm_mhz``, ``power_w``, ``temperature_c``, those that are known; ``throttle``, names of
        :data:`THROTTLE`; and ``idle``, where the GPU was idle: then its clock says nothing of work.
    """
    figures = {"clocks.sm": "sm_mhz", "power.draw": "power_w", "temperature.gpu": "temperature_c"}
    said: dict[str, str] = {}
    for reasons in REASONS:
        said = said or ask(uuid, *figures, reasons, timeout_s=CLOCKS_TIMEOUT_S)
    found: dict[str, object] = {}
    for figure, name in figures.items():
        with contextlib.suppress(KeyError, ValueError):
            found[name] = float(said[figure])
    with contextlib.suppress(ValueError):
        mask = int(next((said[name] for name in REASONS if name in said), ""), 16)
        found["throttle"] = [reason for bit, reason in THROTTLE.items() if mask & bit]
        if mask & GPU_IDLE:
            found["idle"] = True
    return found


def rows(*query: str, timeout_s: float = TIMEOUT_S) -> list[str]:
    """Ask for a table: its lines, with neither names nor units; none where it fails.

    Args:
        query: arguments that say what is asked for.
        timeout_s: seconds to wait.
    """
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
