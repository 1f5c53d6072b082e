"""The result file of one card: appended to by every run, whole after every row."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common import as_rows, described, write

from gpu.goals import goals
from gpu.rows import TRIED_ANEW
from tuner.errors import UsageError

DECIDES = ("torch", "transformers", "accelerate")
"""Packages whose releases decide what rows show: one file holds rows of one release of each."""


class ResultFile:
    """Rows and runs of a card, as they are on disk.

    Args:
        path: of the file; it need not be there yet.
        name: of the card, by the catalogue.
        device: the card in the driver's words.

    Raises:
        UsageError: the file there is of another device, of other releases, or not of this kind.
    """

    def __init__(self, path: Path, name: str, device: str) -> None:
        self._path = path
        self._head = described(name, device)
        self.rows: list[dict[str, Any]] = []
        self.runs: list[dict[str, Any]] = []
        self.rates: dict[str, Any] | None = None
        if path.exists():
            self._read()

    @property
    def commit(self) -> str:
        """Of what runs now."""
        return str(self._head["commit"])

    @property
    def done(self) -> frozenset[str]:
        """Keys of cases that need not be run again."""
        return frozenset(row["key"] for row in self.rows if row["outcome"] not in TRIED_ANEW)

    def add(self, row: dict[str, Any]) -> None:
        """Keep a row, in the place of one of the same case."""
        self.rows = [one for one in self.rows if one["key"] != row["key"]] + [row]
        self.write()

    def keep_rates(self, rates: Mapping[str, Any]) -> None:
        self.rates = dict(rates)
        self.write()

    def add_run(self, run: dict[str, Any]) -> None:
        self.runs.append(run)
        self.write()

    def expected_s(self, part: str, model: str) -> float:
        """Seconds that a case may take, by those before it; 0 when nothing is known.

        Those of its part and model tell most, then those of its model, then all.
        """
        rows = [row for row in self.rows if row["outcome"] not in TRIED_ANEW]
        of_model = [row for row in rows if row["model"] == model]
        of_part = [row for row in of_model if row["part"] == part]
        return max((row["case_s"] for row in of_part or of_model or rows), default=0.0)

    def write(self) -> None:
        """All of it, a row on each line."""
        judged = as_rows(goals(self.rows, self.runs))
        head = json.dumps(
            {**self._head, "goals": judged, "runs": self.runs, "rates": self.rates}, indent=1
        )
        rows = ",\n".join(f"  {json.dumps(row, allow_nan=False)}" for row in self.rows)
        write(self._path, head.removesuffix("\n}") + f',\n "rows": [\n{rows}\n ]\n}}\n')

    def _read(self) -> None:
        try:
            known: Mapping[str, Any] = json.loads(self._path.read_text(encoding="utf-8"))
            self.rows, self.runs = list(known["rows"]), list(known["runs"])
            self.rates = known["rates"]
        except (ValueError, KeyError) as error:
            raise UsageError("out", str(self._path), f"is no result of this: {error}") from error
        for name in ("name", "device"):
            self._same(name, known[name], self._head[name])
        for package in DECIDES:
            was, here = (one["versions"].get(package) for one in (known, self._head))
            self._same(package, was, here)

    def _same(self, what: str, was: object, here: object) -> None:
        if was != here:
            raise UsageError(
                "out", str(self._path), f"holds rows of {what} {was}, here is {here}: name another"
            )
