"""Two pods of admission: one leads, the other takes over what it left; a fake API server and a real broker."""

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from tests.support.broker import Broker
from tests.support.kubernetes import LEASES, PODS, FakeApi
from tests.support.service_harness import channel_of_test, make_context, running, until
from tests.support.settings import make_settings
from tidegate.admission.config import AdmissionConfig, KubernetesConfig
from tidegate.admission.kept_files import PAUSE_FILE
from tidegate.admission.kubernetes.access import LEADER_FILE
from tidegate.admission.kubernetes.leader_label import LABEL
from tidegate.admission.kubernetes.standby import turn
from tidegate.admission.limits_subject import SupersededError
from tidegate.admission.main import build
from tidegate.catalogue import admission as statistics
from tidegate.core.admission import Limits
from tidegate.core.errors import ConflictError
from tidegate.runtime.bus import Bus
from tidegate.runtime.config import StalenessConfig
from tidegate.runtime.live_settings import LiveSections, LiveSettings
from tidegate.runtime.service import ServiceContext
from tidegate.runtime.streams import Stored
from tidegate.wire.clients.admission import AdmissionClient

pytestmark = pytest.mark.integration

FIRST, SECOND = "t-admission-0", "t-admission-1"
CONFIG = AdmissionConfig(
    tick_s=0.05,
    limits_refresh_s=0.2,
    kubernetes=KubernetesConfig(sync_s=0.05, relist_s=0.1, deadline_s=1.0, backoff_s_max=0.2, lease_s=2),
)
Make = Callable[[str], ServiceContext]


@pytest.fixture
async def api() -> AsyncGenerator[FakeApi]:
    api = FakeApi()
    api.deployment("t-actor", 1)
    for name in (FIRST, SECOND):
        api.pod(name)
    async with api.serving():
        yield api


@pytest.fixture
def make(tmp_path: Path, nats: Broker, bus: Bus, api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> Make:
    """The context of a pod, which has a volume of its own; the environment is that of the pod made last."""
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(api.kubeconfig)
    for name, value in {
        "TIDEGATE_KUBERNETES": "1",
        "TIDEGATE_NAMESPACE": "rl",
        "TIDEGATE_RELEASE": "t",
        "TIDEGATE_ADMISSION_PODS": f"{FIRST},{SECOND}",
        "TIDEGATE_ACTOR_DEPLOYMENTS": "t-actor",
        "KUBECONFIG": str(kubeconfig),
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)

    def made(pod: str) -> ServiceContext:
        monkeypatch.setenv("TIDEGATE_POD_NAME", pod)
        settings = make_settings(tmp_path / pod, broker_url=nats.url, max_lag=2)
        return make_context("admission", settings, bus=bus)

    return made


async def lead(context: ServiceContext) -> None:
    waiting = turn(context, CONFIG)
    assert waiting is not None
    async with asyncio.timeout(60.0):
        await waiting


@asynccontextmanager
async def leading(context: ServiceContext) -> AsyncGenerator[AdmissionClient]:
    """One life of a pod from its turn to its end."""
    await lead(context)
    async with running(build, CONFIG, context):
        await until(lambda: context.stats.value(statistics.KUBERNETES_LEADER) == 1.0)
        yield AdmissionClient(channel_of_test(context, "admission"))


def labelled(api: FakeApi) -> list[str]:
    return [pod for pod in (FIRST, SECOND) if api.objects[f"{PODS}/{pod}"]["metadata"]["labels"].get(LABEL)]


def hold(api: FakeApi, pod: str, *, lease_s: int = 600) -> None:
    """As a pod that took the Lease."""
    spec = {"holderIdentity": pod, "leaseDurationSeconds": lease_s}
    api.put(f"{LEASES}/t-admission-leader", {"metadata": {"name": "t-admission-leader"}, "spec": spec})


def holder(api: FakeApi) -> str:
    return api.objects[f"{LEASES}/t-admission-leader"].get("spec", {}).get("holderIdentity", "")


async def newest(context: ServiceContext) -> Stored:
    """The message of the limits in force."""
    topology = context.topology
    stored = await context.bus.last(topology.stream("CONTROL"), topology.control("task_queue"))
    assert stored is not None
    return stored


async def in_force(context: ServiceContext) -> Limits:
    return msgspec.json.decode((await newest(context)).data, type=Limits)


def test_admission_of_one_pod_waits_for_no_turn(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    context = make(FIRST)
    monkeypatch.setenv("TIDEGATE_ADMISSION_PODS", "")
    assert turn(context, CONFIG) is None
    monkeypatch.delenv("TIDEGATE_KUBERNETES")
    assert turn(context, CONFIG) is None


async def test_pod_that_stands_by_takes_over_with_the_pause_and_the_label(make: Make, api: FakeApi) -> None:
    first = make(FIRST)
    async with leading(first) as client:
        await until(lambda: labelled(api) == [FIRST])
        assert (first.data_dir / LEADER_FILE).exists()
        second = make(SECOND)
        (second.data_dir / LEADER_FILE).touch()  # of an earlier life
        standing_by = asyncio.create_task(lead(second))
        await client.set_paused(paused=True, reason="maintenance", by="ana")
        await until(lambda: not (second.data_dir / LEADER_FILE).exists())
        await asyncio.sleep(5 * CONFIG.kubernetes.sync_s)
        assert not standing_by.done()
        assert (holder(api), labelled(api)) == (FIRST, [FIRST])
    # It released the Lease, so the other pod does not wait until it is old.
    await standing_by
    async with running(build, CONFIG, second):
        await until(lambda: labelled(api) == [SECOND])
        limits, _ = await AdmissionClient(channel_of_test(second, "admission")).limits()
        assert limits.reason.endswith(" UTC by ana: maintenance")
        assert (await in_force(second)).paused
    assert (second.data_dir / LEADER_FILE).exists(), "until the next life begins"


async def test_folder_of_an_earlier_leader_is_overtaken_by_what_came_after(make: Make, api: FakeApi) -> None:
    first = make(FIRST)
    async with leading(first) as client:
        await client.set_paused(paused=True, reason="maintenance", by="ana")
    second = make(SECOND)
    async with leading(second) as client:
        await client.set_paused(paused=False, reason="")
    assert (first.data_dir / PAUSE_FILE).exists()
    async with leading(make(FIRST)) as client:
        assert not (await client.limits())[0].paused
        assert not (first.data_dir / PAUSE_FILE).exists()
        # No other pod published since: what its folder has is newer, whatever the broker took.
        await client.set_paused(paused=True, reason="again", by="ana")
    (first.data_dir / PAUSE_FILE).unlink()
    async with leading(make(FIRST)) as client:
        assert not (await client.limits())[0].paused


async def test_leader_that_was_cut_off_ends_and_undoes_nothing(make: Make, api: FakeApi) -> None:
    first = make(FIRST)
    await lead(first)
    with pytest.raises(SupersededError, match="Another admission leads"):
        await live_until_superseded(first, make, api)
    async with leading(make(FIRST)) as client:
        assert (await client.limits())[0].reason.endswith("to the right one")


async def live_until_superseded(first: ServiceContext, make: Make, api: FakeApi) -> None:
    """A life of ``first``, which the API server stops to answer, and another pod beside it."""
    async with running(build, CONFIG, first):
        await until(lambda: labelled(api) == [FIRST])
        api.hangs = True
        await until(lambda: first.stats.value(statistics.KUBERNETES_LEADER) == 0.0)
        # Its Lease grows old, and no other pod could take it: limits are published on.
        await until_newer(first, (await newest(first)).sequence)
        api.hangs = False
        hold(api, SECOND)
        second = make(SECOND)
        async with running(build, CONFIG, second):
            await until(lambda: labelled(api) == [SECOND])
            client = AdmissionClient(channel_of_test(first, "admission"))
            with pytest.raises(ConflictError):
                await client.set_paused(paused=True, reason="to the wrong one", by="ben")
            assert not (await in_force(second)).paused
            client = AdmissionClient(channel_of_test(second, "admission"))
            await client.set_paused(paused=True, reason="to the right one", by="ana")
            assert (await in_force(second)).reason.endswith("to the right one")


async def until_newer(context: ServiceContext, sequence: int) -> None:
    async with asyncio.timeout(60.0):
        while (await newest(context)).sequence == sequence:
            await asyncio.sleep(0.05)


async def test_pod_waits_for_an_api_server_that_does_not_answer_and_for_a_silent_leader(
    make: Make, api: FakeApi
) -> None:
    hold(api, FIRST, lease_s=2)
    api.denied.add(PODS)
    second = make(SECOND)
    standing_by = asyncio.create_task(lead(second))
    await until(lambda: second.stats.value(statistics.KUBERNETES_FAILURES) >= 2)
    assert not standing_by.done()
    api.denied.clear()
    await standing_by
    assert holder(api) == SECOND


async def test_pod_without_the_broker_neither_takes_the_lease_nor_keeps_it(
    make: Make, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    connected = False
    monkeypatch.setattr(Bus, "connected", property(lambda _bus: connected))
    first = make(FIRST)
    standing_by = asyncio.create_task(lead(first))
    await asyncio.sleep(5 * CONFIG.kubernetes.sync_s)
    assert (standing_by.done(), holder(api)) == (False, "")
    connected = True
    await standing_by
    async with running(build, CONFIG, first):
        await until(lambda: first.stats.value(statistics.KUBERNETES_LEADER) == 1.0)
        connected = False
        await until(lambda: first.stats.value(statistics.KUBERNETES_LEADER) == 0.0)
        # No other pod took it meanwhile.
        connected = True
        await until(lambda: first.stats.value(statistics.KUBERNETES_LEADER) == 1.0)
        assert holder(api) == FIRST


async def test_pod_that_drains_stands_by_no_longer(make: Make, api: FakeApi) -> None:
    hold(api, FIRST)
    second = make(SECOND)
    standing_by = asyncio.create_task(lead(second))
    await asyncio.sleep(3 * CONFIG.kubernetes.sync_s)
    second.drain.request()
    await standing_by
    assert holder(api) == FIRST
    assert not (second.data_dir / LEADER_FILE).exists()


async def test_run_file_that_changed_while_a_pod_stood_by_is_in_force_from_its_first_limits(
    make: Make, api: FakeApi
) -> None:
    class Changed:
        """A run file that was changed after the process had read it."""

        def __init__(self) -> None:
            self.is_new = True

        def changed(self) -> bool:
            changed, self.is_new = self.is_new, False
            return changed

        def read(self) -> LiveSections:
            return LiveSections(staleness=StalenessConfig(max_lag=1), until="")

    context = make(FIRST)
    live = LiveSettings(LiveSections(staleness=context.settings.staleness), Changed())
    context = dataclasses.replace(context, live=live)
    heard: list[Limits] = []

    async def hear(data: bytes, _headers: dict[str, str]) -> None:
        heard.append(msgspec.json.decode(data, type=Limits))

    await context.bus.subscribe(context.topology.control("task_queue"), hear)
    async with leading(context):
        await until(lambda: len(heard) > 0)
    assert {limits.max_lag for limits in heard} == {1}
