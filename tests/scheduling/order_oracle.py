"""The response order and its oracle: all responses that may be sent, computed anew each time."""

from __future__ import annotations

from random import Random

from nbtriton.scheduling import ResponseOrder


class OrderPair:
    """Send each event to the order; a response is (request, number); compare all that was sent."""

    def __init__(self) -> None:
        self.order: ResponseOrder[tuple[int, int]] = ResponseOrder()
        self.accepted: list[int] = []
        self.made: dict[int, list[tuple[int, int]]] = {}
        self.open: list[int] = []
        self.sent: list[tuple[int, int]] = []

    def accept(self, random: Random) -> None:
        """Accept a request; keys are unique but not sorted."""
        key = random.getrandbits(48) << 20 | len(self.accepted)
        self.accepted.append(key)
        self.open.append(key)
        self.made[key] = []
        self.order.accept(key)

    def respond(self, at: int, *, final: bool) -> None:
        """The open request at this index responds."""
        key = self.open[at]
        response = (key, len(self.made[key]))
        self.made[key].append(response)
        if final:
            self.open.pop(at)
        self.sent += self.order.respond(key, response, final=final)
        assert self.sent == self._due()

    def _due(self) -> list[tuple[int, int]]:
        due: list[tuple[int, int]] = []
        waiting = set(self.open)
        for key in self.accepted:
            due += self.made[key]
            if key in waiting:
                break
        return due
