"""Writes the requirements with hashes anew: ``make lock``, after constraints.txt has changed.

    python requirements/lock.py [--torch-index URL] [--wheels FOLDER]

``product.txt`` is what the product needs, ``cuda.txt`` what torch's CUDA build needs beside it,
``dev.txt`` what developing it needs more, and ``build.txt`` what builds it. They name no index: a
hash is the same wherever a file comes from. torch has builds for CPUs on an index of its own,
``--torch-index`` (torch's site names it), or in a folder: ``torch-cpu.txt`` has their hashes, those
of this version that it has already among them. uv must be installed.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

HERE = Path(__file__).parent
EXTRAS = ("8bit", "peft", "postgres")
PYTHONS = ("3.11", "3.12", "3.13")
OF_CUDA = re.compile(r"^(nvidia|cuda)-|^triton==")
HEAD = "# Made by `make lock` from pyproject.toml and constraints.txt.\n"


def compiled(*extras: str, source: str = "pyproject.toml") -> dict[str, str]:
    """Each requirement with its hashes, by its first word."""
    argv = [
        *("uv", "pip", "compile", "--no-config", "--universal", "--python-version", PYTHONS[0]),
        *("--default-index", "https://pypi.org/simple", "--no-emit-index-url", "--generate-hashes"),
        *("--no-annotate", "--no-header", "--quiet", "--constraint", "constraints.txt"),
        *(word for extra in extras for word in ("--extra", extra)),
        source,
    ]
    said = subprocess.run(argv, cwd=HERE.parent, check=True, capture_output=True, text=True).stdout
    parts = re.split(r"\n(?=\S)", said.strip())
    return {part.split()[0]: part for part in parts}


def cpu_hashes(version: str, index: str, folder: str) -> set[str]:
    """Hashes of torch's builds for CPUs, and those that are known of this version already."""
    with tempfile.TemporaryDirectory() as made:
        for python in PYTHONS if index else ():
            argv = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", made]
            argv += ["--index-url", index, "--python-version", python, "--only-binary", ":all:"]
            subprocess.run([*argv, f"torch=={version}"], check=True)
        wheels = [*Path(made).glob("*.whl"), *Path(folder or made).glob(f"torch-{version}+cpu-*")]
        found = {sha256(wheel.read_bytes()).hexdigest() for wheel in wheels}
    known = HERE / "torch-cpu.txt"
    said = known.read_text(encoding="utf-8") if known.exists() else ""
    kept = re.findall(r"sha256:(\w+)", said) if f"torch=={version}+" in said else ()
    return found | {*kept}


def write(name: str, parts: Iterable[str]) -> None:
    (HERE / name).write_text(HEAD + "\n".join(parts) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch-index", default="", help="index of torch's builds for CPUs")
    parser.add_argument("--wheels", default="", help="folder with some of these builds")
    options = parser.parse_args()
    product, everything = compiled(*EXTRAS), compiled(*EXTRAS, "dev")
    [torch] = [word for word in product if word.startswith("torch==")]
    version = torch.partition("==")[2]
    hashes = cpu_hashes(version, options.torch_index, options.wheels)
    lines = (f"    --hash=sha256:{one}" for one in sorted(hashes))
    write("torch-cpu.txt", [" \\\n".join((f"{torch}+cpu", *lines))])
    cuda = {word for word in product if OF_CUDA.search(word)}
    write("product.txt", (text for word, text in product.items() if word not in cuda))
    write("cuda.txt", (product[word] for word in product if word in cuda))
    write("build.txt", compiled(source="requirements/build.in").values())
    write("dev.txt", (text for word, text in everything.items() if word not in product))


if __name__ == "__main__":
    main()
