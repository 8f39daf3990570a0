"""Exports the broker's streams and consumers as metrics: the broker itself has no endpoint for Prometheus.

``BrokerWatch.run`` asks JetStream once an export period, and only while telemetry is on. Waits for time. Admission does
it because it samples the streams anyway and runs as a single instance.
"""

from tidegate.catalogue import telemetry as names
from tidegate.core.errors import UnavailableError
from tidegate.runtime.service import ServiceContext, stream_specs
from tidegate.runtime.streams import ConsumerState, StreamState
from tidegate.wire.subjects import StreamSpec

# Streams whose messages are queued work of a stage.
QUEUES = ("TASKS", "ROLLOUTS", "TRAJECTORIES")


def fullness(spec: StreamSpec, state: StreamState) -> float:
    """Utilisation of the limit that a stream is nearest to; at 1 it rejects the next message or drops the oldest."""
    by_messages = state.messages / spec.max_messages if spec.max_messages else 0.0
    return max(by_messages, state.bytes / spec.max_bytes)


class BrokerWatch:
    """Samples the streams of one run and their consumers."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._specs = stream_specs(context.settings)

    async def run(self) -> None:
        """Sample once a period until draining."""
        context = self._context
        if not context.telemetry.enabled:
            await context.drain.wait()
            return
        while not await context.drain.sleep(context.settings.telemetry.metric_period_s):
            try:
                await self.sample()
            except UnavailableError as error:
                context.log.warning("broker_not_seen", error=str(error))

    async def sample(self) -> None:
        """Read every stream and consumer once.

        Raises:
            UnavailableError: JetStream did not answer.
        """
        bus = self._context.bus
        for spec in self._specs:
            self._show_stream(spec, await bus.stream_state(spec.name))
            for consumer in await bus.consumers(spec.name):
                self._show_consumer(self._kind(spec), consumer)

    def _kind(self, spec: StreamSpec) -> str:
        """A stream's name without the run id, which is a label of its own."""
        return spec.name.removesuffix(f"-{self._context.settings.run}")

    def _show_stream(self, spec: StreamSpec, state: StreamState) -> None:
        telemetry, kind = self._context.telemetry, self._kind(spec)
        labels = {names.ATTR_STREAM: kind}
        telemetry.observe(names.METRIC_STREAM_MESSAGES, state.messages, labels)
        telemetry.observe(names.METRIC_STREAM_BYTES, state.bytes, labels)
        telemetry.observe(names.METRIC_STREAM_FULLNESS, fullness(spec, state), labels)
        if kind in QUEUES:
            telemetry.observe(names.METRIC_QUEUE_DEPTH, state.messages, {names.ATTR_QUEUE: kind.lower()})

    def _show_consumer(self, kind: str, consumer: ConsumerState) -> None:
        telemetry = self._context.telemetry
        labels = {names.ATTR_STREAM: kind, names.ATTR_CONSUMER: consumer.durable}
        telemetry.observe(names.METRIC_CONSUMER_PENDING, consumer.pending, labels)
        telemetry.observe(names.METRIC_CONSUMER_ACK_PENDING, consumer.ack_pending, labels)
        telemetry.observe(names.METRIC_CONSUMER_REDELIVERED, consumer.redelivered, labels)
