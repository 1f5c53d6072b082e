"""One rank of a rehearsal: becomes the user's script, over the stand-in, and watches it.

    python -P -m workers.rehearsal.inside ORDER

Where the stand-in is loaded, and nothing else: it is started by :mod:`workers.rehearsal`. The order
is JSON; what was seen is left in ``record.json`` beside it at the end.
"""

import argparse
import ctypes
import errno
import ipaddress
import json
import os
import runpy
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import torch
from torch._C._distributed_c10d import FakeProcessGroup, Store

from tuner import integrations
from workers.measuring.records import write_json
from workers.rehearsal import RECORD, SNAPSHOT, integers
from workers.rehearsal.files import Redirected
from workers.rehearsal.launches import Launches
from workers.rehearsal.moments import Mark, is_installed, line_text, moments, out_of_memory
from workers.standin.python import sitecustomize as changes

# Of prctl(2): this process gets a signal when its parent ends.
PR_SET_PDEATHSIG = 1
# Refused addresses that are told of, at most.
MOST_REFUSED = 20
# What these raise, or raise another from, where a hub is not reached.
HUBS = ("huggingface_hub", "datasets", "transformers")
NOT_REACHED = frozenset({"OfflineModeIsEnabled", "LocalEntryNotFoundError"})
HINT = (
    "A rehearsal has no network: give a local folder or file, fill the hub's cache before, or"
    " --allow-network"
)
PATCHED = {
    "rendezvous": "each process group finds only this rank; of gloo's collectives, this rank's part"
    " stands for all",
    "numbers": "no kernel runs: fractions on the device read as zeros, and losses mean nothing;"
    " whole numbers and truth values are computed, but for those in compiled kernels",
    "routing": "the highest scores of equal ones are found in turn, so that experts get as many"
    " tokens each",
    "cudnn": "torch.backends.cudnn is off, and torch's own kernels are taken: cuDNN needs a GPU",
    "peaks": "torch's peak statistics begin anew with each phase of a step",
}


class Alone(Store):
    """A store in which this rank finds what it has set, and zeros for what others would set."""

    def __init__(self) -> None:
        super().__init__()
        self._values: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def set(self, key: str, value: Any) -> None:
        self._values[key] = value if isinstance(value, bytes) else str(value).encode()

    def get(self, key: str) -> bytes:
        return self._values.get(key, bytes(128))  # as long as a unique id of NCCL's

    def add(self, key: str, amount: int) -> int:
        with self._lock:
            number = int(self._values.get(key, b"0")) + amount
            self._values[key] = str(number).encode()
        return number

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        with self._lock:
            if self._values.get(key, b"").decode() == expected:
                self._values[key] = desired.encode()
            return self._values.get(key, expected.encode())

    def wait(self, *_: Any) -> None:
        """Nobody is waited for."""

    def check(self, keys: Sequence[str]) -> bool:
        """True to what is there: NCCL's watchdog looks here for other ranks' failures."""
        return all(key in self._values for key in keys)

    def delete_key(self, key: str) -> bool:
        return self._values.pop(key, None) is not None

    def num_keys(self) -> int:
        return len(self._values)

    def clone(self) -> "Alone":
        return self


class Rank:
    """What is seen of the rank, and its end."""

    def __init__(self, order: dict[str, Any], folder: Path) -> None:
        self._order, self._folder = order, folder
        self._marks: list[Mark] = []
        self._steps: list[dict[str, Any]] = []
        self._peaks: dict[str, int] = {}
        self._reserved = 0
        self._counts: dict[int, int] = {}
        self._depth = 0
        self._reports = False  # steps are not the optimizer's: an engine or the script ends them
        self._told = False  # by the script
        self._done: dict[str, Any] | None = None  # of the steps that were asked for
        self._launches: Launches | None = None
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self.patched = dict(PATCHED)
        self.not_run: dict[str, None] = {}
        self.refused: dict[str, None] = {}
        self.computed = integers.install()
        own = (Path(order["folder"]), Path(order["libraries"]))
        self.files = None if order["writes"] else Redirected(folder / "written", own)

    # Steps and phases

    def watch(self) -> None:
        """Sees backward passes and optimizer steps from outside, or the script's own reports."""
        torch.cuda._lazy_call(self._start_history)
        torch.autograd.backward = self._seen_backward(torch.autograd.backward)
        optimizer: Any = sys.modules["torch.optim.optimizer"]
        optimizer.register_optimizer_step_pre_hook(lambda *_: self._enter("optimizer"))
        optimizer.register_optimizer_step_post_hook(self._after_optimizer)
        setattr(integrations, "_probe", self)  # noqa: B010
        self._when_imported("deepspeed.runtime.engine", self._watch_deepspeed)
        timer = threading.Timer(self._order["seconds"], self._out_of_time)
        timer.daemon = True
        timer.start()

    def report(self, loss: Any, sequences: int | None) -> None:
        """Takes the place of a probe behind ``report_step``: the script says when steps end."""
        first, self._told, self._reports = not self._told, True, True
        if first and self._done is not None:
            return  # the steps asked for were over with the optimizer's, of which this is the last
        if first:  # those that the optimizer or an engine has ended so far are parts of this one
            for step in self._steps:
                for phase, peak in step["by_phase"].items():
                    self._peaks[phase] = max(peak, self._peaks.get(phase, 0))
                self._reserved = max(self._reserved, step["reserved_bytes"])
            self._steps = []
        self._end_step()

    def _watch_deepspeed(self, module: ModuleType) -> None:
        """Takes a step from the engine: its optimizers are stepped for each group of parameters."""
        engine = module.DeepSpeedEngine
        begin, take = engine.__init__, engine._take_model_step

        def began(itself: Any, *values: Any, **named: Any) -> None:
            self._reports = True
            begin(itself, *values, **named)

        def taken(itself: Any, *values: Any, **named: Any) -> None:
            take(itself, *values, **named)
            if not self._told:
                self._end_step()

        engine.__init__, engine._take_model_step = began, taken

    def _start_history(self) -> None:
        torch.cuda.memory._record_memory_history("all", "all", "python")
        self._marks.append(Mark(_now_us(), 1, "forward"))

    def _enter(self, phase: str) -> None:
        if torch.cuda.is_initialized():
            now = self._marks[-1] if self._marks else Mark(0, 1, "forward")
            self._take_peak(now.phase)
            self._marks.append(Mark(_now_us(), len(self._steps) + 1, phase))

    def _take_peak(self, phase: str) -> None:
        peak = torch.cuda.max_memory_allocated()
        self._peaks[phase] = max(peak, self._peaks.get(phase, 0))
        self._reserved = max(self._reserved, torch.cuda.max_memory_reserved())
        torch.cuda.reset_peak_memory_stats()

    def _seen_backward(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def backward(*values: Any, **named: Any) -> Any:
            if self._depth == 0:
                self._enter("backward")
            self._depth += 1
            try:
                return plain(*values, **named)
            finally:
                self._depth -= 1
                if self._depth == 0:
                    self._enter("forward")

        return backward

    def _after_optimizer(self, optimizer: Any, *_: Any) -> None:
        own = self._counts[id(optimizer)] = self._counts.get(id(optimizer), 0) + 1
        if not self._reports and own > len(self._steps):  # of several, the first that is so far
            self._end_step()
        else:
            self._enter("forward")

    def _end_step(self) -> None:
        if not torch.cuda.is_initialized():
            self._end("failed", "the script steps an optimizer without any use of a GPU")
        self._enter("forward")
        if self._done is not None and self._launches is not None:
            self._done["launches"] = self._launches.found()
            self._end("ok", "one step more")
        peak = max(self._peaks.values())
        self._steps.append(
            {
                "step": len(self._steps) + 1,
                "allocated_bytes": peak,
                "reserved_bytes": self._reserved,
                "fragmentation_bytes": self._reserved - peak,
                "by_phase": self._peaks,
            }
        )
        self._peaks, self._reserved = {}, 0
        self._marks.append(Mark(_now_us(), len(self._steps) + 1, "forward"))
        if len(self._steps) < self._order["steps"]:
            return
        if not self._order.get("timed"):
            self._end("ok", f"{len(self._steps)} steps")
        # One step more tells what it launches: memory is that of steps that nothing followed.
        # Whatever becomes of it, the record is made.
        self._done = self._record("ok", f"{len(self._steps)} steps", "") | self._history()
        torch.cuda.memory._record_memory_history(None)
        self._launches = Launches(lambda: self._marks[-1].phase)
        self._launches.start()

    # Ends

    def _out_of_time(self) -> None:
        self._end("time", f"{self._order['seconds']:g} s were over")

    def failed(self, error: BaseException) -> NoReturn:
        traceback.print_exception(error)
        if isinstance(error, SystemExit) and not error.code:
            self.ended_early("the script left by sys.exit()")
        own = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if not is_installed(frame.filename)
            and "workers/rehearsal" not in frame.filename
            and not frame.filename.startswith("<")
        ]
        where = line_text(own[-1].filename, own[-1].lineno or 0) if own else ""
        outcome = "oom" if isinstance(error, torch.OutOfMemoryError) else "failed"
        words = f"{type(error).__name__}: {error}"
        if not self._order["network"] and wants_network(error):
            words = f"{words.rstrip('. ')}. {HINT}"
        self._end(outcome, words, where)

    def ended_early(self, why: str = "the script came to its end") -> NoReturn:
        outcome = "ok" if self._steps else "failed"
        self._end(outcome, f"{why} after {len(self._steps)} steps")

    def _end(self, outcome: str, words: str, where: str = "") -> NoReturn:
        with self._lock:
            if self._done is None:
                record = self._record(outcome, words, where) | self._history()
            else:  # of the step that was for its launches alone
                record = self._done | {"wall_s": time.monotonic() - self._began}
                record.setdefault("launches", {"unknown": f"{words}, in the step that is timed"})
            write_json(self._folder / RECORD, record)
            sys.stdout.flush()
            sys.stderr.flush()
            # what a script does at its end, such as a checkpoint, is not for a rehearsal
            os._exit(0)

    def _record(self, outcome: str, words: str, where: str) -> dict[str, Any]:
        memory: dict[str, int] = {}
        if torch.cuda.is_initialized():
            self._take_peak(self._marks[-1].phase if self._marks else "forward")
            free, total = torch.cuda.mem_get_info()
            kept = [*self._steps, {"allocated_bytes": max(self._peaks.values()),
                                   "reserved_bytes": self._reserved}]  # fmt: skip
            stats = torch.cuda.memory_stats()
            memory = {
                "allocated_bytes": max(one["allocated_bytes"] for one in kept),
                "reserved_bytes": max(one["reserved_bytes"] for one in kept),
                "beside_bytes": total - free - torch.cuda.memory_reserved(),
                "device_bytes": total,
                "allocation_retries": int(stats.get("num_alloc_retries", 0)),
                "out_of_memory": int(stats.get("num_ooms", 0)),
            }
        if self.files is not None:
            self.not_run |= {f"writing {path}": None for path in self.files.told}
        return {
            "rank": self._order["rank"],
            "world_size": int(os.environ.get("WORLD_SIZE", "1")),
            "outcome": outcome,
            "detail": words,
            "at": where,
            "memory": memory,
            "steps": self._steps,
            "moments": [],
            "held": [],
            "collectives": _collectives(),
            "patched": self.patched,
            "not_run": list(self.not_run),
            "refused": list(self.refused),
            "host_bytes": integrations.resident_bytes(),
            "wall_s": time.monotonic() - self._began,
        }

    def _history(self) -> dict[str, Any]:
        if not torch.cuda.is_initialized():
            return {}
        snapshot = torch.cuda.memory._snapshot()
        trace = snapshot["device_traces"][torch.cuda.current_device()]
        if self._order["snapshot"]:
            torch.cuda.memory._dump_snapshot(str(self._folder / SNAPSHOT))
        return {"moments": moments(trace, self._marks), "held": out_of_memory(trace)}

    # What is not done

    def refuse_network(self) -> None:
        """Refuses connections to other machines; the stand-in refuses those of other languages."""
        for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE"):
            os.environ[name] = "1"
        os.environ |= {"WANDB_MODE": "disabled", "HF_HUB_DISABLE_TELEMETRY": "1"}

        def hear(event: str, values: tuple[Any, ...]) -> None:
            if event != "socket.connect" or not isinstance(values[1], tuple):
                return
            host = str(values[1][0])
            if not _is_here(host):
                if len(self.refused) < MOST_REFUSED:
                    self.refused.setdefault(f"a connection to {host}:{values[1][1]}")
                raise OSError(errno.ENETUNREACH, "a rehearsal has no network")

        sys.addaudithook(hear)

    def leave_out_saving(self) -> None:
        """Passes over what writes weights, which would be zeros, without Python's own files."""
        if self.files is None:
            return
        plain = torch.save

        def save(obj: Any, f: Any, *values: Any, **named: Any) -> None:
            if isinstance(f, str | os.PathLike):
                self.not_run.setdefault(f"torch.save to {os.fspath(f)}")
            else:
                plain(obj, f, *values, **named)

        torch.save = save
        for module, names in {
            "safetensors.torch": ("save_file", "save_model"),
            "torch.distributed.checkpoint.state_dict_saver": ("save", "async_save"),
            # asks all ranks what each has of the state, of which this one's part is not the whole
            "accelerate.utils.fsdp_utils": ("save_fsdp_optimizer",),
            # of Rust's, which would write into folders that are not there
            "transformers.tokenization_utils_base": ("PreTrainedTokenizerBase.save_pretrained",),
        }.items():
            self._when_imported(module, partial(self._pass_over, names))
        # what datasets has prepared is mapped by Arrow
        files = self.files
        self._when_imported("pyarrow", lambda arrow: files.read_by(arrow, "memory_map", "OSFile"))

    def _when_imported(self, name: str, change: Callable[[ModuleType], None]) -> None:
        if (module := sys.modules.get(name)) is not None:
            change(module)
        else:
            sys.meta_path.insert(0, changes.Changer(name, change))

    def _pass_over(self, names: Sequence[str], module: ModuleType) -> None:
        for path in names:
            words, (*owner, name) = f"{module.__name__}.{path}", path.split(".")

            def nothing(*_: Any, words: str = words, **__: Any) -> None:
                self.not_run.setdefault(words)

            setattr(getattr(module, owner[0]) if owner else module, name, nothing)


def _now_us() -> int:
    return time.time_ns() // 1000


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host in ("localhost", "")


def wants_network(error: BaseException) -> bool:
    """True of an error that comes of another machine, or a hub, that was not reached."""
    cause: BaseException | None = error
    while cause is not None:
        kind = type(cause)
        if kind.__name__ in NOT_REACHED and kind.__module__.partition(".")[0] in HUBS:
            return True
        if isinstance(cause, OSError) and cause.errno == errno.ENETUNREACH:
            return True
        if isinstance(cause, socket.gaierror):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def _collectives() -> list[dict[str, Any]]:
    """NCCL's calls, as the stand-in has noted them."""
    library, line = ctypes.CDLL(None), ctypes.create_string_buffer(256)
    found: list[dict[str, Any]] = []
    while library.standin_collective(len(found), line, ctypes.c_size_t(len(line))):
        op, ranks, calls, size = line.value.decode().split()
        found.append({"op": op, "ranks": int(ranks), "calls": int(calls), "bytes": int(size)})
    return found


# How ranks come to be


class Launched:
    """Starts the script in this process where a launcher would start its ranks."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._order = order

    def run(self, words: Sequence[str]) -> None:
        """Becomes what a command line starts: a launcher's parser reads its own options."""
        name, rest = Path(words[0]).name, list(words[1:])
        if name.startswith("python"):
            while rest and rest[0] in ("-u", "-O", "-B", "-P", "-s"):
                rest.pop(0)
            module = rest[1] if rest[:1] == ["-m"] and len(rest) > 1 else ""
            launchers = {"torch.distributed.run": "torchrun", "deepspeed": "deepspeed"}
            launchers |= {"torch.distributed.launch": "torchrun"}
            if module.startswith("accelerate.commands."):
                name, rest = "accelerate", ["launch", *rest[2:]][module.endswith("_cli") :]
            elif module in launchers:
                name, rest = launchers[module], rest[2:]
        if name == "torchrun":
            from torch.distributed import run

            self._elastic(run.parse_args(rest))
        elif name == "accelerate":
            self._accelerate(rest)
        elif name == "deepspeed":
            self._deepspeed(rest)
        elif name.startswith("python"):
            nodes, each = self._order["nodes"] or 1, self._order["gpus_per_node"] or 1
            self._become(rest, nodes, each, told=nodes * each > 1)
        else:
            allowed = "torchrun, accelerate launch, deepspeed, python"
            raise SystemExit(f"cannot rehearse {words[0]}: it knows {allowed}")

    def _elastic(self, args: argparse.Namespace) -> None:
        from torch.distributed import run

        config, _, words = run.config_from_args(args)
        self._become([str(word) for word in words], config.max_nodes, config.nproc_per_node)

    def _accelerate(self, rest: list[str]) -> None:
        from accelerate.commands import launch
        from torch.distributed import run

        if rest[:1] != ["launch"]:
            raise SystemExit("cannot rehearse accelerate but as accelerate launch")

        def alone(args: argparse.Namespace) -> None:
            words, environment = launch.prepare_simple_launcher_cmd_env(args)
            os.environ.update(environment)
            nodes, each = self._order["nodes"] or 1, self._order["gpus_per_node"] or 1
            self._become(words[1:], nodes, each, told=nodes * each > 1)

        run.run = self._elastic
        launch.simple_launcher = alone
        launch.launch_command(launch.launch_command_parser().parse_args(rest[1:]))

    def _deepspeed(self, rest: list[str]) -> None:
        parser = argparse.ArgumentParser(prog="deepspeed")
        parser.add_argument("--num_nodes", "--num-nodes", type=int, default=1)
        parser.add_argument("--num_gpus", "--num-gpus", type=int, default=0)
        for name in ("--hostfile", "--include", "--exclude", "--master_addr", "--master_port"):
            parser.add_argument(name)
        parser.add_argument("--no_local_rank", action="store_true")
        parser.add_argument("--module", action="store_true")
        parser.add_argument("words", nargs=argparse.REMAINDER)
        found = parser.parse_args(rest)
        each = found.num_gpus or torch.cuda.device_count()
        words = ["-m", *found.words] if found.module else list(found.words)
        place = words[: 1 + found.module]
        local = [] if found.no_local_rank else [f"--local_rank={self._order['rank'] % each}"]
        self._become([*place, *local, *words[len(place) :]], found.num_nodes, each)

    def _become(self, words: list[str], nodes: int, each: int, *, told: bool = True) -> None:
        """Runs a script or ``-m`` module as this rank of so many nodes and GPUs of each."""
        asked = self._order["nodes"], self._order["gpus_per_node"]
        if asked[0]:
            if each != asked[1]:
                raise SystemExit(f"the command has {each} ranks a node, and the cluster {asked[1]}")
            if nodes not in (1, asked[0]):
                raise SystemExit(f"the command has {nodes} nodes, and the cluster {asked[0]}")
            nodes = asked[0]
        else:
            os.environ["STANDIN_DEVICES"] = str(each)
        world = nodes * each
        rank = world - 1 if self._order["rank"] < 0 else self._order["rank"]
        if rank >= world:
            raise SystemExit(f"there is no rank {rank} of {world}")
        if told:
            os.environ |= {
                "RANK": str(rank), "LOCAL_RANK": str(rank % each), "WORLD_SIZE": str(world),
                "LOCAL_WORLD_SIZE": str(each), "GROUP_RANK": str(rank // each),
                "GROUP_WORLD_SIZE": str(nodes), "ROLE_RANK": str(rank),
                "ROLE_WORLD_SIZE": str(world), "ROLE_NAME": "default",
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500",
                "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0",
                "TORCHELASTIC_RUN_ID": "rehearsal",
            }  # fmt: skip
        while words and words[0] in ("-u", "-O", "-B", "-P", "-s"):
            words.pop(0)
        if words[:1] == ["-m"]:
            sys.path.insert(0, str(Path.cwd()))
            sys.argv = words[1:]
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
            return
        if not words or not Path(words[0]).is_file():
            raise SystemExit(f"there is no script {words[0] if words else ''}".strip())
        sys.argv = words
        sys.path.insert(0, str(Path(words[0]).resolve().parent))
        runpy.run_path(words[0], run_name="__main__")


def _meet_alone() -> None:
    """Has process groups find this rank only."""
    rendezvous: Any = sys.modules["torch.distributed.rendezvous"]  # the package hides it
    store = Alone()
    rendezvous._create_c10d_store = lambda *_, **__: store
    plain: Any = sys.modules["torch.distributed.distributed_c10d"]
    plain.ProcessGroupGloo = Gloo
    # torch numbers what a group of gloo's does and sets its timeout, which a fake group has not
    fake: Any = FakeProcessGroup
    fake._set_sequence_number_for_group = lambda self: None
    fake._set_default_timeout = lambda self, timeout: None


class _OfGloo(type):
    def __call__(cls, store: Any, rank: int, size: int, *_: Any, **__: Any) -> FakeProcessGroup:
        return FakeProcessGroup._create_internal(rank, size)

    def __instancecheck__(cls, one: object) -> bool:
        return isinstance(one, FakeProcessGroup)


class Gloo(metaclass=_OfGloo):
    """Stands for torch's class: its groups are torch's fake ones, which wait for nobody."""


def main() -> NoReturn:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    path = Path(sys.argv[1])
    order = json.loads(path.read_text(encoding="utf-8"))
    rank = Rank(order, path.parent)
    _meet_alone()
    torch.backends.cudnn.enabled = False
    if not order["network"]:
        rank.refuse_network()
    if rank.files is not None:
        rank.files.install()
    rank.leave_out_saving()
    rank.watch()
    try:
        Launched(order).run(order["command"])
    except BaseException as error:  # noqa: BLE001  (whatever a script raises is its end)
        rank.failed(error)
    rank.ended_early()


if __name__ == "__main__":
    main()
