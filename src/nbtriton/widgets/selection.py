"""What a reader has selected, in all views of a kernel that a page shows: a stretch of time, a request, a model."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import traitlets

from nbtriton.common.errors import NotFoundError
from nbtriton.common.packages import needed
from nbtriton.lab.explain.parts import children_of
from nbtriton.lab.perf.point import config_cells
from nbtriton.runtime.engine import RequestRecord
from nbtriton.runtime.engine.events import request_table
from nbtriton.runtime.engine.status import config_of
from nbtriton.widgets.view import LiveView


class SelectingView(LiveView):
    """A live view that shares its selection with the other ones on the page.

    Attributes
    ----------
    selected : dict
        ``from_ns`` and ``to_ns`` (as of `time.monotonic_ns`), ``request`` (its number), ``model``; none has to be there.
    """

    selected: Any = traitlets.Dict().tag(sync=True)
    # A page may have views of several kernels.
    kernel = traitlets.Unicode().tag(sync=True)

    def __init__(self, **options: Any) -> None:
        super().__init__(kernel=str(os.getpid()), **options)

    # Whose configurations are copied.
    _server: Any = None

    def _handle_command(self, content: dict[str, Any]) -> None:
        if content.get("kind") == "cell":
            self.send({**content, "text": self._configuration_cell(content.get("names", ()))})

    def _configuration_cell(self, names: Iterable[str]) -> str:
        """Return the cell that configures the first of some names that is a model that serves."""
        for name in names if self._server is not None else ():
            if (config := config_of(self._server, name)) is not None:
                return config_cells({name: config})
        return ""

    def _recorded(self) -> Iterable[RequestRecord]:
        """Return the requests that may be selected: those of the view's models, answered and in flight."""
        raise NotImplementedError

    @property
    def selection(self) -> Any:
        """The selected requests as a DataFrame, as of ``nt.events(server, by="request")``."""
        with needed("a DataFrame"):
            return request_table(self._selected_requests())

    def select(self, value: Any) -> None:
        """Select in all views of the page.

        Parameters
        ----------
        value : DataFrame, int, str or None
            Rows of `selection` or of ``nt.events(server, by="request")``: the time from the first arrival to the
            last answer; or a request's number; or a model's name; or nothing.

        Raises
        ------
        NotFoundError
            None of the requests is recorded.
        """
        if value is None:
            self.selected = {}
        elif isinstance(value, str):
            self.selected = {"model": value}
        else:
            self._select_requests(value)

    def _selected_requests(self) -> list[RequestRecord]:
        chosen = dict(self.selected)
        if not chosen:
            return []
        known = {one.number: one for one in self._recorded()}
        if "request" in chosen:
            inner, front, found = children_of(known.values()), [int(chosen["request"])], []
            while front:
                number = front.pop(0)
                found += [known[number]] if number in known else []
                front += [one.number for one in inner.get(number, ())]
            return found
        begin, end = chosen.get("from_ns", 0), chosen.get("to_ns", float("inf"))
        return [
            one
            for one in known.values()
            if one.arrival_ns < end
            and (one.answered_ns or float("inf")) > begin
            and chosen.get("model", one.model) == one.model
        ]

    def _select_requests(self, value: Any) -> None:
        numbers = {int(one) for one in (value["request"] if hasattr(value, "columns") else [value])}
        found = [one for one in self._recorded() if one.number in numbers]
        if not found:
            wanted = ", ".join(map(str, sorted(numbers)[:3])) or "at all"
            raise NotFoundError(f"no request {wanted} is recorded for this view")
        self.selected = spanning(found, request=found[0].number if len(found) == 1 else 0)


def recorded(server: Any, names: Iterable[str]) -> list[RequestRecord]:
    """Return the requests of some models of a server, answered and in flight."""
    wanted = set(names)
    done = [one for name in sorted(wanted) for one in server.requests(name)]
    return [*done, *(one for one in server.in_flight() if one.model in wanted)]


def spanning(requests: Iterable[RequestRecord], *, request: int = 0) -> dict[str, Any]:
    """Return the selection that covers some requests, or one of them by its number."""
    requests = tuple(requests)
    chosen: dict[str, Any] = {
        "from_ns": min(one.arrival_ns for one in requests),
        "to_ns": max(max(one.answered_ns, one.arrival_ns + 1) for one in requests),
    }
    return {**chosen, "request": request} if request else chosen
