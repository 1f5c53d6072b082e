"""Notes what a step launches: operators by shape, and what the stand-in sees of streams."""

import ctypes
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass_type

from workers.probe.collectives import group_of, kind_of, tensors_of
from workers.probe.dry.work import amounts_of

# What an entry of the stand-in's queue is, in the order of ``standin.h``.
WHATS = ("operator", "collective", "records", "waits", "host_waits_stream", "host_waits_event",
         "host_waits_all")  # fmt: skip
# Bytes of the host's memory under which an operator there is no work.
NO_WORK = 1 << 20
# Names of operators that are told, of those that were not counted.
MOST_TOLD = 10


class Entry(ctypes.Structure):
    """One entry of the stand-in's queue (``standin/src/queue.c``)."""

    _fields_ = (
        ("what", ctypes.c_int),
        ("group", ctypes.c_int),
        ("ranks", ctypes.c_int),
        ("stream", ctypes.c_size_t),
        ("of", ctypes.c_size_t),
        ("name", ctypes.c_char_p),
    )


class Launches(TorchDispatchMode):
    """Has each operator of a step told beside what it waits for, from ``start`` on."""

    def __init__(self, phase: Callable[[], str]) -> None:
        super().__init__()
        self._phase = phase
        self._device = torch.cuda.current_device()
        self._operators: dict[tuple[Any, ...], int] = {}  # what it does, by number from 1
        self._each = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # ranks of a node
        self._numbers: dict[tuple[str, str], int] = {}
        # kinds of collectives in their groups: ranks, and how many of them a node has at most
        self._groups: list[tuple[str, int, int]] = []
        self._embedded: Counter[int] = Counter()  # tokens, by rows of the table
        self._tokens, self._sequence = 0, 1
        self._uncounted: dict[str, None] = {}
        library = ctypes.CDLL(None)
        self._begin, self._end = library.standin_operator, library.standin_operator_was
        self._begin.restype = ctypes.c_size_t
        self._begin.argtypes, self._end.argtypes = [ctypes.c_size_t], [ctypes.c_size_t] * 2
        self._library = library

    def start(self) -> None:
        """Follows this thread, and those of autograd that it starts, until the process ends."""
        self._library.standin_follow(1)
        self.__enter__()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if any(map(is_traceable_wrapper_subclass_type, types)):
            return NotImplemented  # seen again as operators on what is within
        kwargs = kwargs or {}
        if (kind := kind_of(func)) is not None:
            self._library.standin_group(self._group(kind, args, kwargs))
            try:
                return func(*args, **kwargs)
            finally:
                self._library.standin_group(-1)
        place = self._begin(torch._C._cuda_getCurrentRawStream(self._device))
        out = func(*args, **kwargs)
        if func.namespace in ("c10d", "_c10d_functional", "prim"):
            return out
        try:
            self._note(place, func, args, kwargs, out)
        except Exception:  # noqa: BLE001  (a library's own operator, of arguments of its own)
            self._uncounted.setdefault(str(func))
        return out

    def _note(self, place: int, func: Any, args: Any, kwargs: Mapping[str, Any], out: Any) -> None:
        if func.overloadpacket is torch.ops.aten.embedding and self._phase() == "forward":
            self._tokens, self._sequence = args[1].numel(), args[1].shape[-1]
            self._embedded[args[0].shape[0]] += self._tokens
        done = amounts_of(
            func, args, kwargs, out, tokens=self._tokens, sequence=self._sequence or 1
        )
        if not done:
            return
        tensors = tensors_of((args, kwargs, out))
        on_host = [tensor for tensor in tensors if not tensor.is_cuda and tensor.dim()]
        if on_host and len(on_host) < len(tensors):
            if func.overloadpacket in (torch.ops.aten.copy_, torch.ops.aten._to_copy):
                done = {"kernels": 1, "host_bytes": max(one.nbytes for one in on_host)}
        elif not any(tensor.is_cuda for tensor in tensors):
            if (moved := done.get("moved_bytes", 0)) < NO_WORK:
                return
            done = {"on_host_bytes": moved}
        floats = [str(one.dtype).removeprefix("torch.") for one in tensors_of(out)]
        multiplies = any(name.endswith("_flops") for name in done)
        numbers = floats[0] if multiplies and floats else ""
        if numbers == "float32" and torch.backends.cuda.matmul.allow_tf32:
            numbers = "tf32"
        what = (str(func.overloadpacket), self._phase(), numbers, *done.items())
        self._end(place, self._operators.setdefault(what, len(self._operators) + 1))

    def _group(self, kind: str, args: Any, kwargs: Mapping[str, Any]) -> int:
        """The number of a kind of collective in a group, by which its calls are told."""
        name = group_of(args, kwargs)
        if (number := self._numbers.get((kind, name))) is None:
            plain: Any = dist.distributed_c10d
            ranks = dist.get_process_group_ranks(plain._resolve_process_group(name))
            on_nodes = Counter(rank // self._each for rank in ranks)
            number = self._numbers[kind, name] = len(self._groups)
            self._groups.append((kind, len(ranks), max(on_nodes.values())))
        return number

    def found(self) -> dict[str, Any]:
        """What was launched, as JSON's values: :class:`tuner.cost.time.rehearsed.Launches`."""
        length, full = ctypes.c_size_t(), ctypes.c_int()
        self._library.standin_follow(0)
        self._library.standin_queue.restype = ctypes.POINTER(Entry)
        entries = self._library.standin_queue(ctypes.byref(length), ctypes.byref(full))
        streams: dict[int, int] = {}
        events: dict[int, int] = {}
        collectives: dict[tuple[Any, ...], int] = {}
        queue: list[tuple[str, int, int]] = []
        exchanged = -1, 0  # the group of an exchange that goes on, and its bytes so far
        for entry in entries[: length.value]:
            what, of = WHATS[entry.what], entry.of
            known = what == "collective" and entry.group >= 0
            exchanges = known and self._groups[entry.group][0] == "all_to_all"
            if (what == "operator" and not of) or (exchanges and entry.name == b"receive"):
                continue
            stream = streams.setdefault(entry.stream or 0, len(streams))
            if exchanges and exchanged[0] == entry.group:  # it is one call to each of its ranks
                queue.pop()
                of += exchanged[1]
            exchanged = (entry.group, of) if exchanges else (-1, 0)
            if what == "operator":
                of -= 1
            elif what == "collective":
                op = "all_to_all" if exchanges else entry.name.decode()
                ranks, each = entry.ranks, min(entry.ranks, self._each)  # neighbours, if not told
                if known:
                    _, ranks, each = self._groups[entry.group]
                key = op, ranks, each, of
                of = collectives.setdefault(key, len(collectives))
            elif what != "host_waits_all":
                of = events.setdefault(of, len(events))
            queue.append((what, stream, of))
        self._library.standin_compiled.restype = ctypes.c_long
        if compiled := self._library.standin_compiled():
            self._uncounted = {f"{compiled} kernels of Triton's": None, **self._uncounted}
        tokens = self._embedded[max(self._embedded)] if self._embedded else 0
        return {
            "operators": [
                {"name": name, "phase": phase, "numbers": numbers, "amounts": dict(amounts)}
                for name, phase, numbers, *amounts in self._operators
            ],
            "collectives": [
                {"op": op, "ranks": ranks, "ranks_per_node": each, "bytes": size}
                for op, ranks, each, size in collectives
            ],
            "queue": queue,
            "full": bool(full.value),
            "tokens": tokens,
            "uncounted": list(self._uncounted)[:MOST_TOLD],
        }
