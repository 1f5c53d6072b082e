"""Evidence from one GPU: emulated probes beside what is predicted of them (``bench_gpu.py``)."""
