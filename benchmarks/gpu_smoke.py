"""A first look at a machine's GPU, in under 3 minutes: ``make gpu-smoke``.

It says whether torch and NCCL can use the GPU, whether a probe in a process that has had others
finds what it finds alone, whether a cap on memory is one, and how near predictions come; one line
each. The exit code is 1 where a line says FAIL. What it found is kept in
``benchmarks/results/gpu-smoke-GPU.json``.

It needs what ``bench_gpu.py`` needs, and nothing has to be installed of this project:
``python benchmarks/gpu_smoke.py`` runs from a copy of the repository.
"""

import sys

from bench_gpu import find_project

if __name__ == "__main__":
    find_project()
    from gpu.smoke import main

    sys.exit(main())
