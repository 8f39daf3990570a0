"""Two processes of a run that cannot reach each other for a while, on real sockets: the run trains on and balances.

A process reads the addresses of the others when it starts. So a test puts a proxy between two of them: it changes one
address in the run folder, kills the process that is to use it, and puts the folder back once the next one is connected.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from tests.e2e.conftest import Run
from tests.e2e.killing import RECOVERY_TIMEOUT_S, assert_accounting_balances
from tests.support.proxy import Proxy
from tidegate.launch.live_run import BROKER
from tidegate.runtime.ports import LOOPBACK

pytestmark = [pytest.mark.e2e, pytest.mark.kill, pytest.mark.extended, pytest.mark.timeout(2000)]

MAX_LAG = 4
PARTITION_S = 30.0
# Who calls or connects, and the process that it does not reach, by run. The second one has the service that acts for
# all actors.
PAIRS = {
    "cartpole": (
        ("actor-0", BROKER),
        ("trajectory_store", BROKER),
        ("task_queue", BROKER),
        ("admission", BROKER),
        ("weight_distribution", BROKER),
        ("learner", "trajectory_store"),
        ("learner", "weight_distribution"),
        ("actor-0", "weight_distribution"),
    ),
    "seed": (
        ("inference", BROKER),
        ("inference", "weight_distribution"),
        ("actor-0", "inference"),
    ),
}


@pytest.fixture
def proxies() -> Iterator[list[Proxy]]:
    started: list[Proxy] = []
    yield started
    for proxy in started:
        proxy.close()


def restart_behind_proxy(run: Run, near: str, far: str) -> Proxy:
    """Start a process again that reaches another one through a proxy, which has its first connection."""
    path = run.folder / "run.json"
    unchanged = path.read_text()
    record = json.loads(unchanged)
    if far == BROKER:
        proxy = Proxy(record["broker"]["port"])
        record["broker"]["elsewhere"] = f"nats://{LOOPBACK}:{proxy.port}"
    else:
        proxy = Proxy(int(record["addresses"][far][0].rpartition(":")[2]))
        record["addresses"][far] = [f"{LOOPBACK}:{proxy.port}"]
    proxy.start()
    replacement = path.with_suffix(".new")
    replacement.write_text(json.dumps(record))
    replacement.replace(path)
    before = run.kill(near)
    run.until(
        lambda: run.pid(near) not in (None, before) and proxy.num_connections > 0,
        timeout_s=RECOVERY_TIMEOUT_S,
        what=f"{near} connected to {far} through the proxy",
    )
    path.write_text(unchanged)
    return proxy


@pytest.mark.parametrize("name", PAIRS)
def test_run_trains_on_after_two_processes_could_not_reach_each_other(
    start: Callable[..., Run], proxies: list[Proxy], capsys: pytest.CaptureFixture[str], name: str
) -> None:
    run = start(
        *(f"runs/{name}.yaml", "--until", "", "--set", f"staleness.max_lag={MAX_LAG}"),
        # No version travels in its announcement: actors pull each of them.
        *("--set", "actor.replicas=1", "--set", "weight_distribution.inline_bytes_max=0"),
    )
    run.until_trains(10)
    for near, far in PAIRS[name]:
        proxy = restart_behind_proxy(run, near, far)
        proxies.append(proxy)
        trained = len(run.steps())
        run.until(
            lambda seen=trained: len(run.steps()) >= seen + 5,
            timeout_s=RECOVERY_TIMEOUT_S,
            what=f"training with {near} behind a proxy",
        )
        pid, before = run.pid(near), len(run.steps())
        with proxy.stalled():
            time.sleep(PARTITION_S)
        during = len(run.steps()) - before
        trains_s = run.until(
            lambda seen=before + during: len(run.steps()) >= seen + 5,
            timeout_s=RECOVERY_TIMEOUT_S,
            what=f"training after {near} could not reach {far}",
        )
        outcome = "the same process" if run.pid(near) == pid else "a new process"
        with capsys.disabled():
            sys.stdout.write(
                f"\n  {near} without {far}: {during} steps meanwhile, trains on after {trains_s:.1f} s, {outcome}"
            )
    run.process.terminate()
    _, summary = run.wait(timeout_s=180)
    assert_accounting_balances(summary["audit"], max_lag=MAX_LAG)
