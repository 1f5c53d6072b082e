"""Runs a command on a machine whose GPUs are the stand-in's: README.md says what that is.

    STANDIN_DEVICES=2 .venv-cuda/bin/python -P -m workers.standin.run COMMAND ...

The libraries are built for this Python's torch, and kept in the user's cache folder until a source
or torch changes.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from platformdirs import user_cache_path

from tuner.environment import PASSED_BY_NAME
from tuner.errors import ProbeError
from tuner.machine import COMPILER, cuda_headers, package_folder, why_no_standin

HERE = Path(__file__).resolve().parent
SOURCES = HERE / "src"
COMPILE = (COMPILER, "-w", "-std=gnu11", "-O1", "-shared", "-fPIC")
"""``-w``: C23 and what nvcc generates call functions with arguments that ours do not look at."""
CALLERS = "c10_cuda", "torch_cuda", "torch_python", "torch_cuda_linalg", "caffe2_nvrtc"
"""Libraries of torch that call CUDA's."""
OURS = re.compile(r"^(cuda|__cuda|cublas|nccl|cu[A-Z])")
"""What the stand-in answers. Registering kernels is left to libcudart, which only makes lists."""
NOT_OURS = re.compile(r"^__cuda(Register|Unregister)")


def environment(options: Mapping[str, object], base: Mapping[str, str]) -> dict[str, str]:
    """What a process must find in its environment to see the stand-in's GPUs, and no others.

    Args:
        options: those of README.md's table by name, without ``STANDIN_``.
        base: the environment that it would have, whose paths are kept behind the stand-in's.
    """
    built = build()
    libraries = [built / "lib"]
    if options.get("NVML"):  # otherwise there is none, and torch takes the way without it
        libraries.append(built / "nvml")
    return {
        **{f"STANDIN_{name}": str(value) for name, value in options.items()},
        PASSED_BY_NAME: _before(["LD_PRELOAD,STANDIN_*"], base.get(PASSED_BY_NAME), ","),
        "LD_PRELOAD": str(built / "lib" / "libcuda.so.1"),
        "LD_LIBRARY_PATH": _before(libraries, base.get("LD_LIBRARY_PATH")),
        # a command that this environment has, such as tuner, is its own
        "PATH": _before([HERE / "bin", Path(sys.executable).parent], base.get("PATH")),
        "PYTHONPATH": _before([HERE / "python"], base.get("PYTHONPATH")),
        "PYTORCH_NVML_BASED_CUDA_CHECK": "0",
        # Triton links what it compiles with libcuda, which it would look for with ldconfig
        "TRITON_LIBCUDA_PATH": str(built / "lib"),
        "TRITON_CACHE_DIR": str(built / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(built / "inductor"),
    }


def build() -> Path:
    """The folder of the libraries, which are built if they are not there. Raises ProbeError: this
    Python or machine has not what it takes, a compiler fails, or files cannot be written."""
    try:
        return _built()
    except (OSError, subprocess.CalledProcessError) as error:
        raise ProbeError(f"the stand-in for CUDA's libraries cannot be built: {error}") from error


def _built() -> Path:
    if why := why_no_standin():
        raise FileNotFoundError(why)
    torch, headers = package_folder("torch"), cuda_headers()
    assert torch is not None
    assert headers is not None
    digest = hashlib.sha256((torch / "version.py").read_bytes() + str(torch).encode())
    for source in [Path(__file__), *sorted(SOURCES.rglob("*.[ch]"))]:
        digest.update(source.read_bytes())
    built = user_cache_path("tuner") / "standin" / digest.hexdigest()[:16]
    if built.exists():
        return built
    built.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=built.parent) as folder:
        made = Path(folder) / "made"
        _compile(made, torch, headers)
        try:
            made.rename(built)
        except OSError:
            if not built.exists():  # another process was quicker
                raise
    return built


def _compile(out: Path, torch: Path, headers: Path) -> None:
    library, nvml = out / "lib" / "libcuda.so.1", out / "nvml" / "libnvidia-ml.so.1"
    library.parent.mkdir(parents=True)
    nvml.parent.mkdir()
    includes = ["-I", str(SOURCES), "-I", str(headers)]
    own = sorted(path for path in SOURCES.glob("*.c") if path.name != "nvml.c")
    # The name within: who asks for libcuda.so.1 later, such as Triton, gets the one preloaded.
    target = ["-Wl,-soname,libcuda.so.1", "-o", str(library)]
    _compiled(*includes, *own, *target)
    # The others are called for what they do, not for what they answer: nothing is done, and 0 is
    # success in all of CUDA's libraries.
    names = sorted(_wanted(torch, headers) - _symbols(library, "--defined-only"))
    rest = out / "rest.c"
    rest.write_text("".join(f"int {name}(void) {{ return 0; }}\n" for name in names), "utf-8")
    _compiled(*includes, *own, rest, *target)
    (library.parent / "libcuda.so").symlink_to(library.name)
    _compiled(*includes, SOURCES / "nvml.c", SOURCES / "options.c", "-o", nvml)


def _compiled(*words: Path | str) -> None:
    done = subprocess.run([*COMPILE, *words], check=False, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if "error" in line] or ["no word"]
        raise OSError(f"{COMPILER} ends with {done.returncode}: {said[0]}")


def _wanted(torch: Path, headers: Path) -> set[str]:
    """Names of functions that torch's libraries call, and all of libcuda's for Triton's."""
    names = set()
    for caller in CALLERS:
        if (library := torch / "lib" / f"lib{caller}.so").exists():
            names |= _symbols(library, "--undefined-only")
    wanted = {name for name in names if OURS.match(name) and not NOT_OURS.match(name)}
    declared = re.findall(r"\bcu[A-Z]\w+", (headers / "cuda.h").read_text(encoding="utf-8"))
    return wanted | {
        n for n in declared if not n.startswith("CU") and not n.endswith(("_st", "_fn"))
    }


def _symbols(library: Path, which: str) -> set[str]:
    listed = subprocess.run(
        ["nm", "--dynamic", which, library], check=True, capture_output=True, text=True
    )
    return {line.split()[-1].partition("@")[0] for line in listed.stdout.splitlines()}


def _before(first: Sequence[Path | str], rest: str | None, between: str = os.pathsep) -> str:
    return between.join([*map(str, first), *([rest] if rest else [])])


def main() -> None:
    prefix = "STANDIN_"
    options = {n.removeprefix(prefix): v for n, v in os.environ.items() if n.startswith(prefix)}
    here = {**os.environ, **environment({"DEVICES": 1, **options}, os.environ)}
    if not (found := shutil.which(command := sys.argv[1], path=here["PATH"])):
        sys.exit(f"{command} is not in PATH, nor beside {sys.executable}")
    os.execve(found, sys.argv[1:], here)  # noqa: S606


if __name__ == "__main__":
    main()
