"""The reader's progress: solved exercises in one JSON file in the user's state folder."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbtriton.drawing import Column
from nbtriton.drawing.table import TableView
from nbtriton.extensions.lessons.definition import Exercise


@dataclass(frozen=True, slots=True)
class Progress:
    """Tries and solved exercises, by the exercise's key.

    The file belongs to the user, not to the notebook, whose folder may be read-only or a repository. Of two
    kernels that mark at the same instant one may lose its try.

    Parameters
    ----------
    path : Path
        A JSON file; may be missing.
    """

    path: Path

    @classmethod
    def of_user(cls) -> Progress:
        """Return ``nbtriton/exercises.json`` in ``XDG_STATE_HOME``, by default ``~/.local/state``."""
        state = os.environ.get("XDG_STATE_HOME")
        folder = Path(state) if state else Path.home() / ".local" / "state"
        return cls(folder / "nbtriton" / "exercises.json")

    def read(self) -> dict[str, dict[str, Any]]:
        """Return ``{"tries": int, "solved": bool}`` by key; empty without a readable file."""
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def record(self, key: str, *, correct: bool) -> tuple[int, str]:
        """Count a try; return the number of tries, and an error if it was not saved, or ``""``."""
        entries = self.read()
        before = entries.get(key, {})
        tries = int(before.get("tries", 0)) + 1
        entries[key] = {"tries": tries, "solved": correct or bool(before.get("solved"))}
        return tries, self._write(entries)

    def forget(self, keys: Iterable[str]) -> None:
        """Delete the progress of these exercises."""
        entries = self.read()
        for key in keys:
            entries.pop(key, None)
        self._write(entries)

    def _write(self, entries: dict[str, dict[str, Any]]) -> str:
        part = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps(entries, indent=1, sort_keys=True) + "\n", encoding="utf-8")
            part.replace(self.path)  # atomic
        except OSError as error:
            return f"Progress is not kept: {error.strerror} ({self.path})"
        return ""


class Overview(TableView):
    """Exercises with the reader's progress.

    Attributes
    ----------
    exercises : tuple of Exercise
    solved : int
    """

    __slots__ = ("_rows", "exercises", "solved")

    def __init__(self, exercises: Iterable[Exercise], progress: Progress) -> None:
        self.exercises = tuple(exercises)
        entries = progress.read()
        states = [entries.get(one.key, {}) for one in self.exercises]
        self.solved = sum(bool(one.get("solved")) for one in states)
        self._rows = [
            (one.name, _state(entry), entry.get("tries", 0), _first_line(one.question))
            for one, entry in zip(self.exercises, states, strict=True)
        ]

    def _table(self) -> tuple[Sequence[str | Column], Sequence[Sequence[object]], str]:
        caption = f"{self.solved} of {len(self.exercises)} exercises solved"
        return ("exercise", "state", "tries", "question"), self._rows, caption


def _state(entry: dict[str, Any]) -> str:
    # No line break between the sign and its word in a narrow column.
    if entry.get("solved"):
        return "✓\xa0solved"
    return "✗\xa0tried" if entry.get("tries") else "○\xa0open"


def _first_line(question: str) -> str:
    return question.partition("\n")[0].replace("`", "")
