# Every target sets up what it needs: a fresh clone with Python 3.11-3.13 and make is enough.
PYTHON ?= python3
VENV := .venv
CUDA_VENV := .venv-cuda
BIN := $(VENV)/bin
# What the product needs, and with it what its tests and checks need.
READY := $(VENV)/.ready
INSTALLED := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help suggest test test-all test-long test-cuda cuda-env check format clean
.PHONY: bench bench-cli bench-predict bench-times bench-suggest bench-warm bench-cpu-probes
.PHONY: bench-adapters bench-adapter-probes bench-from-axolotl bench-search bench-replay-costs
.PHONY: bench-service bench-scale bench-pages
.PHONY: bench-extrapolation bench-any-model bench-traced bench-tensor-parallel bench-zero gpu-smoke bench-gpu bench-cuda-allocator bench-rehearsed bench-rehearsed-time bench-rehearsed-gpu bench-knobs docs
.PHONY: bench-attack evidence screenshots lock

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-21s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Each file is held against its hash, wherever it comes from. Where an index offers a build of torch
# for CPUs, it is taken; those with CUDA need more.
INSTALL := -m pip install --quiet --disable-pip-version-check --no-deps

$(READY): pyproject.toml $(wildcard requirements/*.txt)
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if (3, 11) <= v[:2] <= (3, 13) \
		else f"Python 3.11 to 3.13 is needed, this is {v[0]}.{v[1]}: make PYTHON=python3.11 ...")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (once): torch, 1 of 3"
	@$(BIN)/python $(INSTALL) --require-hashes -r requirements/torch-cpu.txt 2>/dev/null || true
	@echo "what else tuner needs, 2 of 3"
	@$(BIN)/python $(INSTALL) --require-hashes $(addprefix -r requirements/,product.txt build.txt)
	@if $(BIN)/python -c 'from importlib.metadata import version as v; exit("+cpu" in v("torch"))'; \
		then $(BIN)/python $(INSTALL) --require-hashes -r requirements/cuda.txt; fi
	@echo "tuner itself, 3 of 3"
	@$(BIN)/python $(INSTALL) --no-build-isolation --editable .
	@touch $@

$(INSTALLED): $(READY)
	@echo "installing what tests and checks need into $(VENV) (once)"
	@$(BIN)/python $(INSTALL) --require-hashes -r requirements/dev.txt
	@touch $@

lock:  ## requirements/*.txt anew, after constraints.txt has changed (needs uv; ARGS: see requirements/lock.py)
	@$(PYTHON) requirements/lock.py $(ARGS)

# accelerate shards on GPUs only: under ddp what is found on CPUs can be launched on them too.
suggest: $(READY)  ## the main job: probe a small real model on two CPU processes, and answer
	@$(BIN)/tuner suggest --model stories15m --cluster cpu:2 --framework accelerate \
		--knob sharding=ddp --global-batch-size 8 --sequence-length 128 --max-probes 8 $(ARGS) \
		--write accelerate=accelerate.yaml

# Tests start hundreds of processes: what they import is compiled once, and not by each of them.
test test-all test-long test-cuda: export PYTHONDONTWRITEBYTECODE =

test: $(INSTALLED)  ## the unit tests, and a few that start processes: no system package, no network (3 minutes)
	@$(BIN)/python -m pytest -q -n 2 --dist loadgroup tests/unit tests/process \
		-m "(unit or smoke) and not slow and not long"

test-all: $(INSTALLED)  ## all tests but the long ones; on Slurm, Ray and Chromium where they are installed
	@$(BIN)/python -m pytest -q -n 2 --dist loadgroup -m "not cuda and not long"

test-long: $(INSTALLED)  ## before a release: long tests, and made-up input at random, twenty times as much
	@$(BIN)/python -m pytest -q -n 2 --dist loadgroup --hypothesis-profile long \
		-m "(hypothesis or long) and not cuda"

# --isolated: where a configured index offers CPU builds of torch, they would be taken.
cuda-env:  ## a CUDA build of torch in .venv-cuda, for test-cuda: no GPU is needed (once; 5 GB)
	@test -x $(CUDA_VENV)/bin/python || $(PYTHON) -m venv $(CUDA_VENV)
	@$(CUDA_VENV)/bin/python -m pip install --isolated --quiet --disable-pip-version-check \
		--constraint constraints.txt --editable '.[8bit]' \
		'pytest>=9.0,<9.2' pytest-xdist hypothesis
	@touch $(CUDA_VENV)/.installed

test-cuda:  ## tests of CUDA's paths over a stand-in for the driver, without a GPU (10 minutes)
	@if test -e $(CUDA_VENV)/.installed; then \
		$(CUDA_VENV)/bin/python -m pytest -q -n 2 --dist loadfile -m cuda tests/cuda; \
	else echo "test-cuda: nothing is run; make cuda-env installs what it needs (5 GB)"; fi

check: $(INSTALLED)  ## style, types and layers
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(INSTALLED)  ## mend style
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: bench-cli bench-predict bench-search bench-suggest bench-service bench-pages  ## all benchmarks of this machine

bench-cli: $(INSTALLED)  ## how quickly the command line answers
	@$(BIN)/python benchmarks/cli.py
	@$(BIN)/python benchmarks/report.py

bench-predict: $(INSTALLED)  ## how good and how fast predictions are (under 15 minutes)
	@$(BIN)/python benchmarks/predict.py
	@$(BIN)/python benchmarks/times.py
	@$(BIN)/python benchmarks/report.py

bench-times: $(INSTALLED)  ## step times against published runs, by arithmetic (a minute)
	@$(BIN)/python benchmarks/times.py
	@$(BIN)/python benchmarks/report.py

bench-adapters: $(INSTALLED)  ## full fine-tuning and LoRA against published runs, by arithmetic (seconds)
	@$(BIN)/python benchmarks/adapters.py
	@$(BIN)/python benchmarks/report.py

bench-adapter-probes: $(INSTALLED)  ## LoRA and QLoRA on CPU ranks against dry runs (6 minutes)
	@$(BIN)/python benchmarks/adapter_probes.py
	@$(BIN)/python benchmarks/report.py

bench-from-axolotl: $(INSTALLED)  ## axolotl's own examples as questions: FOLDER=.../examples (a minute; DRY=20 dry-runs some)
	@$(BIN)/python benchmarks/from_axolotl.py $(FOLDER) --dry $(or $(DRY),0) \
		$(if $(KEEP),--keep $(KEEP)) --unknown docs/from_axolotl.md
	@$(BIN)/python benchmarks/report.py

bench-cpu-probes: $(INSTALLED)  ## measure again what bench-predict compares with on CPUs (15 minutes)
	@$(BIN)/python benchmarks/cpu_probes.py
	@$(BIN)/python benchmarks/profiled_peaks.py

# One thread for each process: matrices are small, and replays run side by side. Where the rivals'
# packages cannot be had, their lines are left out, and the report says so.
bench-search: $(INSTALLED)  ## how few probes the search needs, against its rivals
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--constraint constraints.txt --editable '.[bench]' || true
	@OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 $(BIN)/python benchmarks/search.py
	@$(BIN)/python benchmarks/report.py

bench-replay-costs: $(INSTALLED)  ## fit again what bench-search predicts with (5 minutes)
	@$(BIN)/python benchmarks/replay_costs.py

bench-extrapolation: $(INSTALLED)  ## extrapolated against full-depth dry runs (an hour)
	@$(BIN)/python benchmarks/extrapolation.py
	@$(BIN)/python benchmarks/report.py

bench-any-model: $(INSTALLED)  ## which types of models dry runs follow, beside real steps (15 minutes)
	@$(BIN)/python benchmarks/any_model.py --real
	@$(BIN)/python benchmarks/any_model.py --task masked_lm
	@$(BIN)/python benchmarks/any_model.py --task sequence_classification

bench-traced: $(INSTALLED)  ## step times from traces against arithmetic (10 minutes)
	@$(BIN)/python benchmarks/traced_times.py

bench-zero: $(INSTALLED)  ## memory under DeepSpeed's ZeRO against arithmetic; AGAIN=1 measures, which needs deepspeed
	@$(BIN)/python benchmarks/zero.py $(if $(AGAIN),--again)

bench-tensor-parallel: $(INSTALLED)  ## memory without sequence parallelism against dry runs
	@$(BIN)/python benchmarks/tensor_parallel.py

bench-suggest: $(READY)  ## how long the main job takes
	@$(BIN)/python benchmarks/suggest.py
	@$(BIN)/python benchmarks/report.py

# A machine with a GPU may have torch, transformers and accelerate, and no $(VENV).
gpu-smoke:  ## a first look at this machine's GPU: warm as cold, caps, NCCL, predictions (3 minutes)
	@python=$(or $(wildcard $(BIN)/python),$(PYTHON)); \
		$$python benchmarks/gpu_smoke.py $(ARGS); code=$$?; \
		$$python benchmarks/report.py && exit $$code

bench-gpu:  ## evidence from one CUDA GPU: PART=warm, memory, recompute, seed, time or grid (each under 8 minutes)
	@python=$(or $(wildcard $(BIN)/python),$(PYTHON)); \
		$$python benchmarks/bench_gpu.py $(or $(PART),all) $(ARGS); code=$$?; \
		$$python benchmarks/report.py && exit $$code

bench-cuda-allocator:  ## predicted memory against torch's CUDA allocator, without a GPU (10 to 30 minutes)
	@if test -e $(CUDA_VENV)/.installed; then \
		$(CUDA_VENV)/bin/python benchmarks/cuda_allocator.py $(ARGS); code=$$?; \
		$(CUDA_VENV)/bin/python benchmarks/report.py && exit $$code; \
	else echo "bench-cuda-allocator: nothing is run; make cuda-env installs what it needs (5 GB)"; fi

bench-rehearsed:  ## rank 0 rehearsed alone against ranks that all run, and dry runs, without a GPU (10 minutes)
	@if test -e $(CUDA_VENV)/.installed; then \
		$(CUDA_VENV)/bin/python benchmarks/rehearsed.py $(ARGS); code=$$?; \
		$(CUDA_VENV)/bin/python benchmarks/report.py && exit $$code; \
	else echo "bench-rehearsed: nothing is run; make cuda-env installs what it needs (5 GB)"; fi

bench-rehearsed-time:  ## step times of rehearsed scripts against predicted and published ones, without a GPU (5 minutes)
	@if test -e $(CUDA_VENV)/.installed; then \
		$(CUDA_VENV)/bin/python benchmarks/rehearsed_time.py $(ARGS); code=$$?; \
		$(CUDA_VENV)/bin/python benchmarks/report.py && exit $$code; \
	else echo "bench-rehearsed-time: nothing is run; make cuda-env installs what it needs (5 GB)"; fi

bench-rehearsed-gpu:  ## rehearsed scripts against the same ones on a GPU: ARGS=FILE of benchmarks/rehearsed_gpu.py --measure (2 minutes)
	@if test -e $(CUDA_VENV)/.installed; then \
		$(CUDA_VENV)/bin/python benchmarks/rehearsed_gpu.py $(ARGS); code=$$?; \
		$(CUDA_VENV)/bin/python benchmarks/report.py && exit $$code; \
	else echo "bench-rehearsed-gpu: nothing is run; make cuda-env installs what it needs (5 GB)"; fi

bench-knobs: $(INSTALLED)  ## the pictures and tables of docs/knobs.md, dry-run anew (2 minutes)
	@$(BIN)/python benchmarks/knobs.py

docs: $(INSTALLED)  ## what is generated in docs/: the command line's reference, the pictures of knobs
	@$(BIN)/python -m tests.system.docs.reference
	@$(BIN)/python benchmarks/knobs.py --draw

evidence: $(INSTALLED)  ## docs/evidence.md from benchmarks/results
	@$(BIN)/python benchmarks/report.py

bench-service: $(INSTALLED)  ## claims, answers, streams and polls of the service (5 minutes)
	@$(BIN)/python benchmarks/parts.py service
	@$(BIN)/python benchmarks/report.py

bench-attack: $(INSTALLED)  ## silent callers, hostile requests and the service's memory (15 minutes)
	@$(BIN)/python benchmarks/attack.py $(ARGS)
	@$(BIN)/python benchmarks/report.py

bench-scale: $(INSTALLED)  ## how planning, the queue and a fleet of workers grow (10 minutes)
	@$(BIN)/python benchmarks/parts.py scale
	@$(BIN)/python benchmarks/report.py

bench-pages: $(INSTALLED)  ## a page of 500 probes after each event, and a hundred viewers of it (2 minutes)
	@$(BIN)/python benchmarks/parts.py pages
	@$(BIN)/python benchmarks/report.py

bench-warm: $(INSTALLED)  ## probes that share rank processes against those that do not (10 minutes)
	@$(BIN)/python benchmarks/warm.py

screenshots: $(INSTALLED)  ## the pictures of docs/pages.md, of studies run for them (needs Chromium; 10 minutes)
	@$(BIN)/python -m tests.system.browser.screenshots docs/images

clean:  ## remove what the targets made
	rm -rf $(VENV) $(CUDA_VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis accelerate.yaml
