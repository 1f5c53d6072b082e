"""What ``nvidia-smi`` says on machines that are hard to come by.

The words are those of public reports, which are named. The rows are reconstructed from them in the
order of our query (uuid, name, memory.total, mig.mode.current; csv,noheader,nounits), since nobody
else asks for just these fields; identifiers are made up, or those of NVIDIA's own documents.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """An answer."""

    code: int = 0
    """The exit code."""
    rows: str = ""
    """To our query."""
    listing: str = ""
    """To ``nvidia-smi -L``."""


# Names of slices and the form of the list: NVIDIA's MIG user guide, "Running CUDA Applications on
# Bare-Metal", and XuehaiPan/nvitop#8 (A100-SXM4-80GB, some in MIG mode); rows reconstructed.
MIG = Said(
    rows="""\
GPU-e86cb44c-6756-fd30-cd4a-1e6da3caf9b0, NVIDIA A100-SXM4-80GB, 81920, Enabled
GPU-5c9d1f10-8b1a-2c50-9c06-3c5c5b5c7d11, NVIDIA A100-SXM4-80GB, 81920, Disabled
""",
    listing="""\
GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-e86cb44c-6756-fd30-cd4a-1e6da3caf9b0)
  MIG 3g.40gb     Device  0: (UUID: MIG-c7384736-a75d-5afc-978f-d2f1294409fd)
  MIG 1g.10gb     Device  1: (UUID: MIG-a28ad590-3fda-56dd-84fc-0a0b96edc58d)
GPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-5c9d1f10-8b1a-2c50-9c06-3c5c5b5c7d11)
""",
)
# unslothai/unsloth#10703: "0, NVIDIA GB10, [N/A], [N/A]" for index,name,memory.total,memory.free.
GB10 = Said(rows="GPU-2dee1e25-b3b5-007e-2b55-79f2d0f2ebe5, NVIDIA GB10, [N/A], [N/A]\n")
# JosephKJ/OWOD#81 and AlexeyAB/darknet#86; nvidia-smi(1) gives code 15 for it.
LOST = Said(
    code=15,
    rows="Unable to determine the device handle for GPU 0000:02:00.0: GPU is lost.  Reboot the"
    " system to recover this GPU\n",
)
# NVIDIA/open-gpu-kernel-modules#387 and others, without the code; reconstructed as of LOST.
UNKNOWN_ERROR = Said(
    code=255, rows="Unable to determine the device handle for GPU 0000:0B:00.0: Unknown Error\n"
)
# anderskm/gputil#55 with its code; mozilla/translations#1167 shows that it goes to stdout.
MISMATCH = Said(
    code=18,
    rows="Failed to initialize NVML: Driver/library version mismatch\n"
    "NVML library version: 535.161\n",
)
# Rootless containers; quoted in many guides with exit codes 4 and 255.
NO_PERMISSION = Said(code=255, rows="Failed to initialize NVML: Insufficient Permissions\n")
# The kernel's module is not loaded; nvidia-smi(1) gives code 9. Also in images without a GPU.
NO_DRIVER = Said(
    code=9,
    rows="NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure"
    " that the latest NVIDIA driver is installed and running.\n",
)
# A container whose access to the devices was taken away (systemd's daemon-reload); reconstructed.
NO_ACCESS = Said(code=255, rows="Failed to initialize NVML: Unknown Error\n")
NO_DEVICES = Said(code=6, rows="No devices were found\n")
