"""Environment variables that pass to processes which train or trace models.

A list of what may pass, not of what must not: nobody can list the names of all secrets.
"""

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase

# What a stack is configured by on a machine. A ``*`` stands for any end.
PASSED = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR", "TMP",
    "TEMP", "PYTHON*", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "CC", "CXX", "XDG_CACHE_HOME",
    "XDG_RUNTIME_DIR", "HF_HOME", "HF_HUB_CACHE",
    "CUDA_*", "CUBLAS_*", "CUDNN_*", "NVIDIA_*", "NVTE_*", "NCCL_*", "UCX_*", "FI_*", "GLOO_*",
    "OMP_*", "KMP_*", "GOMP_*", "MKL_*", "OPENBLAS_*", "MALLOC_*", "BNB_*",
    "PYTORCH_*", "TORCH_*", "TORCHINDUCTOR_*", "TRITON_*",
    "SLURM_*", "SLURMD_*", "SLURMSTEPD_*", "SRUN_*", "PMI_*", "PMIX_*", "MUNGE_*",
)  # fmt: skip
# Further names that somebody wants to pass, with commas between them; itself it passes too.
PASSED_BY_NAME = "TUNER_PASS_ENV"
# Names of secrets, which pass by their whole name alone.
SECRET = re.compile(
    r"(^|_)(TOKENS?|SECRETS?|PASS|PASSWD|CREDENTIALS?|KEY|APIKEY|JWT|DSN)(_|$)|PASSWORD|^PG"
    r"|^DATABASE_URL$"
)


def passed(inherited: Mapping[str, str]) -> dict[str, str]:
    """The variables that may pass: :data:`PASSED`, and those that ``TUNER_PASS_ENV`` names."""
    more = _named(inherited) | {PASSED_BY_NAME}
    return {
        name: value
        for name, value in inherited.items()
        if name in more
        or (
            not SECRET.search(name)
            and any(fnmatchcase(name, pattern) for pattern in (*PASSED, *more))
        )
    }


def without_secrets(inherited: Mapping[str, str]) -> dict[str, str]:
    """All variables but those that are named as secrets are, unless ``TUNER_PASS_ENV`` names them:
    for a user's own script."""
    more = _named(inherited)
    return {
        name: value for name, value in inherited.items() if name in more or not SECRET.search(name)
    }


def _named(inherited: Mapping[str, str]) -> set[str]:
    return {name.strip() for name in inherited.get(PASSED_BY_NAME, "").split(",")}
