"""The part of the broker's client that ``runtime`` uses, connected to the simulated broker."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar, cast

import msgspec
import nats.errors
import nats.js.errors
from nats.aio.msg import Msg

from tidegate.core.errors import UnavailableError
from tidegate.runtime.broker_client import BrokerClient, Receive, Received
from tidegate.runtime.bus_failures import BusFailures
from tidegate.runtime.streams import REQUEST_TIMEOUT_S
from tidegate.runtime.subscribing import subscribe
from tidegate.sim.broker import NAME, SimulatedBroker
from tidegate.sim.management import Manager
from tidegate.sim.network import Network
from tidegate.sim.process import Process
from tidegate.sim.streams import Headers

T = TypeVar("T")
Callback = Callable[[Msg], Awaitable[None]]
# nats-py's default bound of what one subscription may have waiting.
PENDING_MESSAGES_MAX = 512 * 1024
# Messages that a connection keeps while the broker is down; nats-py bounds them by bytes (2 MiB).
UNSENT_MAX = 2048
# Between two attempts to connect, as `runtime.bus` sets it.
CONNECT_RETRY_S = 0.15


class _Subscription:
    """Messages of one subscription wait here for its callback, which one task calls."""

    def __init__(self, subject: str, callback: Callback) -> None:
        self._tokens = subject.split(".")
        self._callback = callback
        self.waiting: asyncio.Queue[Msg] = asyncio.Queue(PENDING_MESSAGES_MAX)
        self._task = asyncio.create_task(self._run())

    def matches(self, subject: str) -> bool:
        tokens = subject.split(".")
        return len(tokens) == len(self._tokens) and all(
            wanted in ("*", token) for wanted, token in zip(self._tokens, tokens, strict=True)
        )

    async def _run(self) -> None:
        while True:
            await self._callback(await self.waiting.get())

    def stop(self) -> None:
        self._task.cancel()


class _Handle(msgspec.Struct):
    """The handle that ``subscribe`` returns."""

    connection: "Connection"
    subscription: _Subscription

    async def drain(self) -> None:
        """End the subscription at once: what is on its way is lost, as where the broker does not answer in time."""
        self.connection.forget(self.subscription)


class Connection:
    """One process' connection, with nats-py's names."""

    _inboxes = itertools.count()

    def __init__(
        self,
        broker: SimulatedBroker,
        network: Network,
        process: Process,
        *,
        slow_prefix: str = "",
        slow_s: float = 0.0,
    ) -> None:
        """Subjects that begin with ``slow_prefix`` take ``slow_s`` longer to this process."""
        self._broker = broker
        self._network = network
        self._process = process
        self._slow_prefix = slow_prefix
        self.slow_s = slow_s
        self._subscriptions: list[_Subscription] = []
        self._unsent: list[Callable[[], None]] = []
        self.on_reconnect: Callable[[], None] = lambda: None
        self.is_connected = broker.up
        broker.connect(self)

    def as_client(self) -> BrokerClient:
        """For code that is typed for the real one."""
        return cast("BrokerClient", self)

    async def wait_connected(self, *, timeout_s: float) -> None:
        """Return once the broker is reachable.

        Raises:
            UnavailableError: it was not within ``timeout_s``.
        """
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        while not self.is_connected:
            if asyncio.get_running_loop().time() >= deadline_s:
                raise UnavailableError("The simulated broker is down", fix="restart it")
            await asyncio.sleep(CONNECT_RETRY_S)

    # -- as the broker sees it -------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The name of its process."""
        return self._process.name

    @property
    def alive(self) -> bool:
        """Whether its process is alive."""
        return self._process.alive

    def delay_s(self, subject: str) -> float:
        """Seconds that messages of a subject take to this process beyond the network's delay."""
        return self.slow_s if self._slow_prefix and subject.startswith(self._slow_prefix) else 0.0

    def matches(self, subject: str) -> bool:
        """Whether the process subscribed to a subject."""
        return any(subscription.matches(subject) for subscription in self._subscriptions)

    def num_waiting(self) -> int:
        """Messages that arrived and were not handled yet."""
        return sum(subscription.waiting.qsize() for subscription in self._subscriptions)

    def arrived(self, subject: str, data: bytes, headers: Headers, reply: str) -> None:
        """A message for a subscription."""
        if not self.alive or not self.is_connected:
            return
        message = Msg(_client=self.as_client(), subject=subject, reply=reply, data=data, headers=headers)
        for subscription in self._subscriptions:
            if subscription.matches(subject):
                subscription.waiting.put_nowait(message)

    def lost(self) -> None:
        """The connection to the broker was lost."""
        self.is_connected = False

    def reconnected(self) -> None:
        """The broker is reachable again: send what waited."""
        if not self.alive or not self._broker.up:
            return
        self.is_connected = True
        unsent, self._unsent = self._unsent, []
        for send in unsent:
            send()
        self._process.run(self.on_reconnect)

    # -- as the runtime uses it ------------------------------------------------------------------------------------

    async def publish(
        self, subject: str, data: bytes = b"", reply: str = "", headers: Headers | None = None
    ) -> None:
        """Send and forget."""
        self._send(lambda: self._broker.publish(self, subject, data, headers or {}, reply))

    async def send(
        self, subject: str, data: bytes, *, reply: str = "", headers: Headers | None = None
    ) -> None:
        """Send and forget."""
        await self.publish(subject, data, reply, headers)

    async def answer(self, replies: Sequence[str], body: bytes) -> None:
        """Send ``body`` to each of these subjects."""
        for reply in replies:
            await self.publish(reply, body)

    async def subscribe(self, subject: str, cb: Callback) -> _Handle:
        """Call ``cb`` with every message of a subject, one after the other."""
        subscription = _Subscription(subject, cb)
        self._subscriptions.append(subscription)
        return _Handle(self, subscription)

    async def follow(self, subject: str, receive: Receive, failures: BusFailures) -> _Handle:
        """Pass ``receive`` every message of a subject, one after the other."""

        async def passed(message: Msg) -> None:
            receive(Received(message.subject, message.reply, message.data, message.headers or {}))

        return cast("_Handle", await subscribe(self.as_client(), subject, passed, failures))

    def forget(self, subscription: _Subscription) -> None:
        """End a subscription."""
        subscription.stop()
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)

    def new_inbox(self) -> str:
        """A new subject of this connection."""
        return f"_INBOX.{next(self._inboxes)}"

    def jsm(self, **_options: float) -> Manager:
        """JetStream's management."""
        return Manager(self._broker, self._ask, delay_s=self.delay_s)

    async def flush(self) -> None:
        """Return once the broker has what was sent before."""
        await self._ask(lambda: None, timeout_s=REQUEST_TIMEOUT_S)

    async def close(self) -> None:
        """End the subscriptions."""
        for subscription in list(self._subscriptions):
            self.forget(subscription)

    # -- transport -------------------------------------------------------------------------------------------------

    def _send(self, act: Callable[[], object]) -> None:
        """Execute ``act`` at the broker; kept while the broker is down, up to ``UNSENT_MAX``."""
        if not self.alive:
            return

        def arrive() -> None:
            if self._broker.up:
                act()

        def send() -> None:
            self._network.send(arrive, between=(self.name, NAME))

        if self.is_connected:
            send()
        elif len(self._unsent) < UNSENT_MAX:
            self._unsent.append(send)

    async def _ask(self, act: Callable[[], T], *, timeout_s: float, extra_s: float = 0.0) -> T:
        """The result of ``act`` at the broker; ``act`` may be executed although its answer is lost."""
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def happen() -> None:
            try:
                value = act()
            except nats.js.errors.APIError as error:
                failure = error
                self._reply(lambda: answer.done() or answer.set_exception(failure), extra_s=extra_s)
            else:
                self._reply(lambda: answer.done() or answer.set_result(value), extra_s=extra_s)

        self._send(happen)
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError as error:
            raise nats.errors.TimeoutError from error

    def _reply(self, give: Callable[[], object], *, extra_s: float) -> None:
        def arrive() -> None:
            if self.alive and self.is_connected:
                give()

        self._network.send(arrive, between=(NAME, self.name), extra_s=extra_s)
