"""Evidence from one GPU: ``make bench-gpu PART=warm|memory|recompute|seed|time|grid``.

One CUDA device plays rank 0 of 8 or 64, through the product's own launcher and probe program, and
what it shows is kept beside what is predicted of it in ``benchmarks/results/GPU.json``. Each
part takes less than 8 minutes; what is left then is done when it is called again, and nothing is
done twice. Without a part all of them are run, in that order; ``gpu_smoke.py`` goes before.
With ``--warm`` the probes of a part share a process, which saves each its start.

It needs torch, transformers, accelerate, pydantic and threadpoolctl, and nothing has to be
installed of this project: ``python benchmarks/bench_gpu.py memory`` runs from a copy. Where
there is no git, ``BENCH_COMMIT`` names the commit. ``--device cpu --reduced --out FILE`` runs
every part in small, on tiny models, and ``--device cuda --reduced --out FILE`` tries a GPU out in
some minutes.
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def find_project() -> None:
    """Let this process and its ranks find the project, which need not be installed."""
    sys.path.insert(0, str(ROOT))
    known = filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))
    os.environ["PYTHONPATH"] = os.pathsep.join(known)


def main() -> int:
    find_project()
    from gpu.program import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
