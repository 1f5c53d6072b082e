"""Keeps a script's writes in a folder of the rehearsal's: what was there before stays as it is."""

import builtins
import io
import os
import shutil
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any

# Where writing is no matter of anybody's files.
DEVICES = ("/dev", "/proc", "/sys")
# Paths that are told of, at most.
MOST_TOLD = 20
# Functions of ``os`` that only look at a path.
LOOKS = ("stat", "lstat", "listdir", "scandir", "access", "chdir", "statvfs", "readlink")
# Those that change what is at a path.
CHANGES = ("mkdir", "rmdir", "remove", "unlink", "chmod", "chown", "utime", "truncate", "mkfifo")
# Those that change what is at two.
MOVES = ("rename", "replace", "link", "symlink")


class Redirected:
    """Gives Python's own functions of files other paths where they would write.

    A path outside of ``own`` folders is written below ``into``, and read from there once it is
    there. Libraries that write without Python, such as safetensors, are another matter.
    """

    def __init__(self, into: Path, own: tuple[Path, ...]) -> None:
        self._into = os.fspath(into)
        self._own = (self._into, *map(os.fspath, own), *DEVICES)
        self.told: dict[str, None] = {}
        """Paths that were to be written or removed, in their order."""
        self._exists = os.path.lexists
        self._mkdir, self._lstat = os.mkdir, os.lstat

    def install(self) -> None:
        """Takes the place of the functions, for this process and its forks."""
        self._mkdir(self._into)
        sys.dont_write_bytecode = True
        opened = self._opened(builtins.open)
        builtins.open = io.open = opened
        os.open = self._opened_low(os.open)
        for name in LOOKS:
            setattr(os, name, self._looking(getattr(os, name)))
        for name in CHANGES:
            setattr(os, name, self._changing(getattr(os, name)))
        for name in MOVES:
            setattr(os, name, self._moving(getattr(os, name)))

    def read_by(self, library: ModuleType, *names: str) -> None:
        """Has functions of a library that read a path without Python's find what was written."""
        for name in names:
            setattr(library, name, self._looking(getattr(library, name)))

    def _elsewhere(self, path: Any, folder: int | None = None) -> str:
        """Where a path is written; empty for one that may be written where it is."""
        try:
            text = os.fsdecode(path)
        except TypeError:  # a number of an open file
            return ""
        # not by pathlib, which asks the functions that are changed here
        base = os.getcwd() if folder is None else os.readlink(f"/proc/self/fd/{folder}")  # noqa: PTH109, PTH115
        whole = os.path.normpath(os.path.join(base, text))  # noqa: PTH118
        if any(whole == own or whole.startswith(own + "/") for own in self._own):
            return ""
        return self._into + whole

    def _note(self, path: Any) -> None:
        if len(self.told) < MOST_TOLD:
            self.told.setdefault(os.fsdecode(path))

    def _there(self, path: str) -> bool:
        try:
            self._lstat(path)
        except OSError:
            return False
        return True

    def _make_room(self, other: str, path: Any) -> None:
        """Makes the folders above a path's other one, if those of the path itself are there."""
        above, real = os.path.dirname(other), os.path.dirname(other)[len(self._into) :]  # noqa: PTH120
        if self._there(above):
            return
        if not self._there(real):
            raise FileNotFoundError(2, "No such file or directory", os.fsdecode(path))
        made = self._into
        for part in real.strip("/").split("/"):
            made = f"{made}/{part}"
            if not self._there(made):
                self._mkdir(made)

    def _seen(self, path: Any, folder: int | None = None) -> Any:
        """Where a path is read: what was written in its place, if anything was."""
        if isinstance(path, int):
            return path
        other = self._elsewhere(path, folder)
        return other if other and self._there(other) else path

    def _written(self, path: Any, *, keeps: bool, folder: int | None = None) -> Any:
        other = self._elsewhere(path, folder)
        if not other:
            return path
        self._note(path)
        self._make_room(other, path)
        real = other[len(self._into) :]
        if keeps and not self._there(other) and self._there(real):
            shutil.copyfile(real, other)
        return other

    def _opened(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(plain)
        def run(file: Any, mode: str = "r", *values: Any, **named: Any) -> Any:
            if isinstance(file, int):
                return plain(file, mode, *values, **named)
            writes = set(mode) & set("wax+")
            path = self._written(file, keeps="w" not in mode) if writes else self._seen(file)
            return plain(path, mode, *values, **named)

        return run

    def _opened_low(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(plain)
        def run(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
                to = self._written(path, keeps=not flags & os.O_TRUNC, folder=dir_fd)
            else:
                to = self._seen(path, dir_fd)
            return int(plain(to, flags, mode, dir_fd=dir_fd))

        return run

    def _looking(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(plain)
        def run(path: Any = ".", *values: Any, **named: Any) -> Any:
            return plain(self._seen(path, named.get("dir_fd")), *values, **named)

        return run

    def _changing(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(plain)
        def run(path: Any, *values: Any, **named: Any) -> Any:
            other = self._elsewhere(path, named.get("dir_fd"))
            if not other:
                return plain(path, *values, **named)
            self._note(path)
            if self._there(other):
                return plain(other, *values, **named)
            real = other[len(self._into) :]
            if plain.__name__ == "mkdir":
                if self._there(real):
                    raise FileExistsError(17, "File exists", os.fsdecode(path))
                self._make_room(other, path)
                return plain(other, *values, **named)
            if not self._there(real):
                raise FileNotFoundError(2, "No such file or directory", os.fsdecode(path))
            return None

        return run

    def _moving(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(plain)
        def run(first: Any, second: Any, *values: Any, **named: Any) -> Any:
            to = self._written(second, keeps=False)
            source = self._seen(first)
            if (
                plain.__name__ in ("rename", "replace")
                and source is first
                and self._elsewhere(first)
            ):
                self._note(first)  # a real file is copied, and stays
                return shutil.copyfile(first, to)
            return plain(source if plain.__name__ != "symlink" else first, to, *values, **named)

        return run
