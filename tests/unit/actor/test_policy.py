"""Which announced versions an actor takes, as far as the model behind their adapters decides it."""

import asyncio
from pathlib import Path
from typing import Literal, cast

import msgspec
import numpy as np
import pytest

from tests.support.service_harness import make_context
from tests.support.settings import make_settings
from tests.unit.actor.support import snapshot
from tests.unit.models.tiny_llama import make_folder
from tidegate.actor.engines.port import EngineControl
from tidegate.actor.policy import HeadPolicy, policy_follower
from tidegate.actor.rollouts.served_policy import ServedPolicy
from tidegate.catalogue import actor as statistics
from tidegate.core.errors import UnavailableError
from tidegate.core.ids import PolicyVersion
from tidegate.core.records import PolicySnapshot
from tidegate.core.staleness import Lineage, LineageTree
from tidegate.models.model_folder import folder_digest
from tidegate.runtime.bus import Bus
from tidegate.runtime.config import LoraConfig, PolicyConfig
from tidegate.runtime.policy_watch import PolicyWatch
from tidegate.runtime.service import ServiceContext
from tidegate.wire.announcement import Announcement
from tidegate.wire.policy_payload import announce


class AnyEngine:
    """An engine that accepts every policy."""

    def check_policy(self, snapshot: PolicySnapshot) -> None:
        del snapshot


class Announced:
    """A fake subscription: one announcement after another, then a drain."""

    def __init__(self, context: ServiceContext, announcements: list[Announcement]) -> None:
        self._context = context
        self._left = announcements

    async def changed(self, seen: PolicyVersion | None, *, timeout_s: float) -> Announcement | None:
        del seen, timeout_s
        if self._left:
            return self._left.pop(0)
        self._context.drain.request()
        return None


def announced(step: int, *, base_digest: str) -> Announcement:
    offered = msgspec.structs.replace(snapshot(step, {"w": np.ones(2, np.float32)}), base_digest=base_digest)
    message, chunks = announce(offered, LineageTree().add(Lineage(name=offered.version.lineage)))
    message.inline_payload = b"".join(chunks)
    return Announcement(message)


async def served_after(
    folder: Path, policy: PolicyConfig, base_digests: list[str]
) -> tuple[PolicySnapshot | None, float]:
    """The version that an actor of ``policy`` serves after one version of each base, and the number of refusals."""
    settings = msgspec.structs.replace(make_settings(folder, broker_url=""), policy=policy)
    context = make_context("actor", settings, bus=cast("Bus", None))
    control = EngineControl()
    versions = [announced(step, base_digest=base) for step, base in enumerate(base_digests)]
    watch = cast("PolicyWatch", Announced(context, versions))
    served = ServedPolicy(control, asyncio.Event())
    await policy_follower(context, watch, served, AnyEngine(), attempts=1).run()
    await context.channels.close()
    return control.newest, context.stats.value(statistics.POLICIES_REFUSED)


async def test_adapters_of_another_model_are_refused_and_those_of_its_own_served(tmp_path: Path) -> None:
    own = make_folder(tmp_path / "own", tied=True)
    other = make_folder(tmp_path / "other", tied=True, seed=1)
    policy = PolicyConfig(kind="transformers", path=str(own), lora=LoraConfig(rank=2))
    served, num_refused = await served_after(tmp_path, policy, [folder_digest(own), folder_digest(other), ""])
    assert num_refused == 2
    assert served is not None
    assert (served.version.step, served.base_digest) == (0, folder_digest(own))


@pytest.mark.parametrize("kind", ["transformers", "char_lm", "mlp"])
async def test_policy_that_is_all_weights_needs_no_other_model(
    tmp_path: Path, kind: Literal["transformers", "char_lm", "mlp"]
) -> None:
    policy = PolicyConfig(kind=kind)
    served, num_refused = await served_after(tmp_path, policy, ["0" * 32, ""])
    assert num_refused == 1
    assert served is not None
    assert served.version.step == 1


async def test_evaluation_before_the_first_policy_is_told_that_there_is_none(tmp_path: Path) -> None:
    context = make_context("actor", make_settings(tmp_path, broker_url=""), bus=cast("Bus", None))
    head = HeadPolicy(context, PolicyWatch(context), AnyEngine(), attempts=1)
    with pytest.raises(UnavailableError, match="There is no policy to evaluate yet"):
        await head.newest()
    await context.channels.close()
