"""Oracle of the batcher: rules S1 to S5, D1 to D16, Q1 to Q12 and P1 to P8 in their plainest form.

Lists instead of queues, every scan from the start, no fast path, no state between events beyond that
of the rules. Slow, and meant to be read beside the rules.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from nbtriton.scheduling import BatcherSettings, TimeoutAction

FAILS = 13

# ("run", instance, request numbers), ("reject", request number, reason), or ("stage", "return", "suspend"
# or "retire", instance)
Outcome = tuple


@dataclass
class Waiting:
    """One request in the queue."""

    number: int
    size: int
    key: object
    level: int
    since: int
    deadline: int | None
    # Serving order: level, delayed ones after the others, then arrival.
    place: tuple[int, bool, int]
    volume: int = 0
    expired: bool = False


@dataclass
class Payload:
    """A batch that waits for an instance."""

    requests: list[Waiting] = field(default_factory=list)
    key: object = None
    mergeable: bool = True
    wanted: int = 0

    @property
    def size(self) -> int:
        return sum(one.size for one in self.requests)

    @property
    def volume(self) -> int:
        return sum(one.volume for one in self.requests)


class BatcherOracle:
    """Predicts the decisions of a batcher with these settings.

    ``volume``: the custom batching strategy's limit on the sum of volumes of a batch, None without a
    strategy. It fails on a request of volume `FAILS`. ``rank``: the rank of an instance under a rate
    limiter, None without one.
    """

    def __init__(
        self, settings: BatcherSettings, instances: int, volume: int | None = None, rank=None
    ) -> None:
        self.settings = settings
        self.limit = volume
        self.rank = rank
        self.staged: dict[int, Payload] = {}
        self.instances = instances
        self.idle = list(range(instances))
        self.retiring: set[int] = set()
        self.lost: set[int] = set()  # while they were busy
        self.suspended: set[int] = set()
        self.queue: list[Waiting] = []
        self.payloads: list[Payload] = []
        self.open: Payload | None = None
        self.wait_until: int | None = None
        self.asleep: int | None = None  # since the queue was empty
        self.sleeping = False  # beside requests that it has not seen
        self.order = 0
        policy = settings.default_policy
        self.prefetch = settings.priority_levels == 0 and not (
            policy.default_timeout_ns or policy.allow_timeout_override or policy.max_queue_size
        )  # Q10

    # -- events ----------------------------------------------------------------------------------

    def submit(self, now, number, size, key, level, timeout, volume=0):
        if not self.settings.dynamic:  # S2
            self.payloads.append(Payload([Waiting(number, size, key, 0, now, None, (0, False, 0))]))
            return self.advance(now, [])
        out = []
        self.expire(now, out)
        self.enqueue(now, out, number, size, key, level, timeout, volume)
        return out if self.sleeps(now) else self.advance(now, out)

    def submit_many(self, now, requests):
        """All are queued before the first decision."""
        if not self.settings.dynamic or len(requests) == 1:
            return [outcome for request in requests for outcome in self.submit(now, *request)]
        out = []
        self.expire(now, out)
        for request in requests:
            self.enqueue(now, out, *request)
        return out if requests and self.sleeps(now) else self.advance(now, out)

    def enqueue(self, now, out, number, size, key, level, timeout, volume=0):
        policy = self.policy(level)
        if policy.max_queue_size and policy.max_queue_size <= sum(
            one.level == level for one in self.queue
        ):  # Q4
            out.append(("reject", number, "queue_full"))
        else:
            effective = policy.default_timeout_ns
            if policy.allow_timeout_override and 0 < timeout < effective:  # Q5
                effective = timeout
            at_once = 0 < effective <= self.settings.hand_over_ns  # Q6
            if at_once and policy.timeout_action is TimeoutAction.REJECT:
                out.append(("reject", number, "timeout"))
                return
            self.order += 1
            self.queue.append(
                Waiting(
                    number,
                    size,
                    key,
                    level,
                    now,
                    now + effective if effective and not at_once else None,
                    (level, False, self.order),
                    volume,
                    at_once,
                )
            )

    def finish(self, now, instance):
        if instance in self.retiring:
            self.retiring.remove(instance)
            return [("retire", instance), *self.tick(now)]
        if instance in self.lost:
            self.lost.remove(instance)
            self.suspended.add(instance)
            return [("suspend", instance), *self.tick(now)]
        self.idle.append(instance)
        return self.tick(now)

    def suspend(self, instance, busy):
        if busy:
            self.lost.add(instance)
            return []
        self.idle.remove(instance)
        self.suspended.add(instance)
        return [("suspend", instance)]

    def resume(self, now, instance):
        self.suspended.remove(instance)
        self.idle.append(instance)
        return self.tick(now)

    def add_instance(self, now, instance):
        self.instances += 1
        self.idle.append(instance)
        return self.tick(now)

    def remove_instance(self, now, instance, busy):
        self.instances -= 1
        if busy:
            self.lost.discard(instance)
            self.retiring.add(instance)
            return self.tick(now)
        if instance in self.suspended:
            self.suspended.remove(instance)
        else:
            self.idle.remove(instance)
        return [("retire", instance), *self.tick(now)]

    def granted(self, now, instance):
        payload = self.staged.pop(instance)
        if not payload.requests:
            return [("return", instance), *self.finish(now, instance)]
        if payload is self.open:
            self.open = None
        out = [("run", instance, *(one.number for one in payload.requests))]
        self.expire(now, out)
        return self.advance(now, out)

    def tick(self, now):
        out = []
        self.expire(now, out)
        return self.advance(now, out)

    def cancel(self, now, number):
        found = [one for one in self.queue if one.number == number]
        if not found:
            return []
        self.queue.remove(found[0])
        out = [("reject", number, "cancelled")]
        self.expire(now, out)
        return self.advance(now, out)

    def cancel_formed(self, now, number):
        """Cancel a request, also one in a formed batch."""
        for payload in [*self.payloads, *self.staged.values()]:
            for one in payload.requests:
                if one.number == number:
                    payload.requests.remove(one)
                    if not payload.requests:
                        self.payloads = [other for other in self.payloads if other.requests]
                        self.open = None if payload is self.open else self.open
                    out = [("reject", number, "cancelled")]
                    self.expire(now, out)
                    return self.advance(now, out)
        return self.cancel(now, number)

    def clear(self):
        waiting = [one for payload in self.payloads for one in payload.requests]
        waiting += sorted(self.queue, key=lambda one: one.place)
        self.payloads, self.queue, self.open, self.wait_until = [], [], None, None
        self.sleeping = False
        return [("reject", one.number, "stopped") for one in waiting]

    # -- queries ---------------------------------------------------------------------------------

    def wake_at(self):
        times = [one.deadline for one in self.queue if one.deadline is not None]
        if self.wait_until is not None:
            times.append(self.wait_until)
        return min(times, default=None)

    @property
    def waiting(self):
        formed = [*self.payloads, *self.staged.values()]
        return len(self.queue) + sum(len(payload.requests) for payload in formed)

    # -- rules -----------------------------------------------------------------------------------

    def policy(self, level):
        if self.settings.priority_levels == 0:
            return self.settings.default_policy
        return self.settings.level_policies.get(level, self.settings.default_policy)  # Q1

    def expire(self, now, out):
        due = [one for one in self.queue if one.deadline is not None and one.deadline <= now]
        for one in sorted(due, key=lambda one: (one.deadline, one.place[2])):
            if self.policy(one.level).timeout_action is TimeoutAction.REJECT:  # Q7
                self.queue.remove(one)
                out.append(("reject", one.number, "timeout"))
            else:
                one.deadline, one.expired = None, True

    def sleeps(self, now):
        """The batcher sleeps until as many rows wait as it wanted, or for another half a second (D16)."""
        self.sleeping = False
        if self.asleep is None or not self.prefetch or self.limit is not None:
            return False
        if self.open is None or not self.open.requests:
            return False
        if any(one.key is not None for one in self.queue):
            return False
        if sum(one.size for one in self.queue) >= self.open.wanted:
            return False
        next_look = self.asleep
        while next_look <= now:
            next_look += 500_000_000
        self.wait_until = next_look
        self.sleeping = True
        return True

    def advance(self, now, out):
        taken = self.open is None or not self.open.requests or (self.idle and self.payloads)
        if self.sleeping and now < self.wait_until and not taken:
            return out
        self.sleeping = False
        while True:
            while self.idle and self.payloads:
                out.append(self.stage() if self.rank else self.pop(now))
            self.wait_until = None
            self.asleep = None
            if not self.queue:
                self.asleep = now
                return out
            if self.prefetch and not self.rank and len(self.payloads) >= 2 * self.instances:  # P2
                return out
            if not self.prefetch and not self.idle:  # Q11
                return out
            if not self.scan(now, out):
                return out

    def scan(self, now, out):
        settings = self.settings
        mbs = max(1, settings.max_batch_size)
        preferred = settings.preferred
        largest = max(preferred, default=0)
        delay = settings.max_queue_delay_ns
        payload = self.open or Payload()
        self.open = payload
        held = payload.size
        size = best = best_count = 0
        accepted = []
        closed = send_now = False
        while rest := [one for one in self.queue if one not in accepted]:
            one = min(rest, key=lambda one: one.place)  # D1
            if one.expired:  # Q8: it moves behind when a scan meets it
                self.order += 1
                one.expired, one.place = False, (one.level, True, self.order)
                continue
            if held + size == 0:  # D2
                payload.key = one.key
            else:  # D3
                if held + size + one.size > largest and best == 0:
                    best, best_count, closed = size, len(accepted), True
                if held + size + one.size > mbs:
                    send_now = True
                    break
                if one.key != payload.key:
                    send_now = True
                    payload.mergeable = False
                    break
            if self.limit is not None:  # D4
                if one.volume == FAILS:
                    self.queue.remove(one)
                    out.append(("reject", one.number, "custom_batching_failed"))
                    continue
                if payload.volume + sum(o.volume for o in accepted) + one.volume > self.limit:
                    if not held + size:  # an empty batch does not include it
                        self.queue.remove(one)
                        out.append(("reject", one.number, "custom_batching_refused"))
                        return True
                    send_now = True
                    payload.mergeable = False
                    break
            accepted.append(one)
            size += one.size
            if held + size in preferred:  # D5
                best, best_count = size, len(accepted)
        exceeded = bool(delay and accepted) and now - min(o.since for o in accepted) >= delay  # D6
        if best and not exceeded:  # D7
            return self.release(accepted[:best_count], closed or delay == 0)
        if not accepted:  # D8
            if closed or send_now:
                self.open = None
            return closed or send_now
        if send_now or held + size >= largest:
            return self.release(accepted, True)
        if exceeded or delay == 0:  # D9
            return self.release(accepted, closed)
        self.open.wanted = min(one for one in preferred if one > held + size) - held
        if held and not closed and held not in preferred:  # D10
            return self.release(accepted, False)
        self.wait_until = min(one.since for one in accepted) + delay
        return False

    def release(self, requests, close):
        if not self.open.requests:
            self.payloads.append(self.open)
        for one in requests:
            self.queue.remove(one)
            self.open.requests.append(one)
        if close:
            self.open = None
        return True

    def stage(self):
        instance = min(self.idle, key=self.rank)  # R6
        self.idle.remove(instance)
        self.staged[instance] = self.payloads.pop(0)
        return ("stage", instance)

    def pop(self, now):
        payload = self.payloads.pop(0)
        if payload is self.open:  # P4
            self.open = None
        delay = self.settings.max_queue_delay_ns
        limit = max(1, self.settings.max_batch_size)
        while delay and limit > 1 and payload.mergeable and self.payloads:  # P5
            other = self.payloads[0]
            if not other.mergeable or now - min(one.since for one in other.requests) <= delay:
                break
            if other is self.open:
                self.open = None
            if (
                payload.size + other.size > limit
                or other.key != payload.key
                or (self.limit is not None and payload.volume + other.volume > self.limit)
            ):
                break
            self.payloads.pop(0)
            payload.requests += other.requests
        return ("run", self.idle.pop(0), *(one.number for one in payload.requests))
