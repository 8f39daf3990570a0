"""Descriptions of environments, and a service that answers with one, for tests that open none."""

import math
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np

from tests.support.call_credentials import accepted
from tidegate.core.errors import ConfigError
from tidegate.core.spaces import BoxSpace, DiscreteSpace, EnvironmentDescription
from tidegate.runtime.rpc import Registration, RpcServer
from tidegate.v1 import environment_service_pb2 as pb
from tidegate.v1.environment_service_pb2_grpc import (
    EnvironmentServiceServicer,
    add_EnvironmentServiceServicer_to_server,
)
from tidegate.wire.descriptions import description_to_proto


def _float32(*values: float) -> tuple[float, ...]:
    return tuple(float(np.float32(value)) for value in values)


CARTPOLE = EnvironmentDescription(
    env_id="CartPole-v1",
    observation_space=BoxSpace(
        shape=(4,),
        dtype="float32",
        low=_float32(-4.8, -math.inf, -0.41887903, -math.inf),
        high=_float32(4.8, math.inf, 0.41887903, math.inf),
    ),
    action_space=DiscreteSpace(2),
    max_episode_steps=500,
    is_vectorised=True,
)


class _Describing(EnvironmentServiceServicer):
    """Answers every question with one description."""

    def __init__(self, description: EnvironmentDescription) -> None:
        self._answer = description_to_proto(description)

    async def DescribeEnvironment(
        self, request: pb.DescribeEnvironmentRequest, context: Any
    ) -> pb.DescribeEnvironmentResponse:
        return self._answer


@asynccontextmanager
async def describing(
    address: str, description: EnvironmentDescription = CARTPOLE
) -> AsyncGenerator[None, None]:
    """An environment service that knows ``description`` and nothing else, unless one serves there already."""
    fake = _Describing(description)  # pyright: ignore[reportAbstractUsage] # its other calls stay unimplemented
    servicer = Registration(add_EnvironmentServiceServicer_to_server, fake, "tidegate.v1.EnvironmentService")
    server = RpcServer([servicer], accepted())
    try:
        await server.start(address)
    except ConfigError:
        yield
        return
    try:
        yield
    finally:
        await server.stop(grace_s=0.0)
