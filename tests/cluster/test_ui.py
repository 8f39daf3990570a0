"""The page of a run in a cluster: opened through its Service, followed while the run trains and its pods die."""

import json
import re
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.cookiejar import CookieJar
from typing import Any

import pytest

from tests.cluster.conftest import install, task_values
from tests.cluster.kube import Namespace, until

pytestmark = [pytest.mark.cluster, pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

TOKEN = "a-token-of-this-test"
FORWARDING = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+)")


class Page:
    """A browser that opened the page once with its token."""

    def __init__(self, port: int) -> None:
        self._address = f"http://127.0.0.1:{port}"
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        self._opener.open(f"{self._address}/?token={TOKEN}", timeout=30.0).close()

    def get(self, path: str) -> Any:
        with self._opener.open(f"{self._address}/api/runs{path}", timeout=60.0) as answer:
            return json.loads(answer.read())


@pytest.fixture(scope="module")
def own(namespace: str, tmp_path_factory: pytest.TempPathFactory) -> Namespace:
    """A task of one's own, whose code the page does not have, with the page."""
    release = Namespace(namespace, "own")
    values = task_values(tmp_path_factory.mktemp("values"))
    release.kubectl("create", "secret", "generic", "page", f"--from-literal=token={TOKEN}")
    install(release, values, "--set", "ui.enabled=true,ui.existingSecret=page,tls.selfSigned.enabled=true")
    return release


@pytest.fixture(scope="module")
def page(own: Namespace) -> Iterator[Page]:
    command = ["kubectl", "--namespace", own.namespace, "port-forward", "service/own-ui", ":8471"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as forwarding:
        assert forwarding.stdout is not None
        found = FORWARDING.search(forwarding.stdout.readline())
        assert found is not None
        yield Page(int(found.group(1)))
        forwarding.terminate()


def line(page: Page) -> Any:
    [found] = page.get("")
    assert not found["problem"], found["problem"]
    return found


def test_the_page_follows_the_run(own: Namespace, page: Page, figures: dict[str, object]) -> None:
    until("it shows updates", lambda: line(page)["step"] >= 10, timeout_s=300.0)
    name = line(page)["name"]
    assert (line(page)["state"], name) == ("running", line(page)["run_id"])
    before = line(page)["step"]
    figures["page_behind_s"] = until("newer updates", lambda: line(page)["step"] > before, timeout_s=60.0)
    until("the flow of work", lambda: "trained" in page.get(f"/{name}/flow")["states"], timeout_s=60.0)
    moment = page.get(f"/{name}/moment")
    assert moment["problems"] == []
    assert moment["sentence"]
    assert moment["signals"]["learner_samples_per_s"] > 0
    newest = page.get(f"/{name}/trajectories?state=trained")[0]
    one = page.get(f"/{name}/trajectories/{newest['trajectory_id']}")
    assert one["prompt"]
    assert page.get(f"/{name}/curves")["updates"] > 0
    assert "my_task.py" in page.get(f"/{name}")["run_file"]


def test_a_pod_without_the_token_sees_nothing(page: Page) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{page._address}/api/runs", timeout=30.0)  # pyright: ignore[reportPrivateUsage]
    assert refused.value.code == 401


def test_it_goes_on_after_the_services_that_it_copies_were_deleted(own: Namespace, page: Page) -> None:
    before = line(page)["step"]
    for service in ("trajectory-store", "learner", "admission"):
        own.kubectl("delete", "pod", f"own-{service}-0", "--force", "--grace-period=0")
    name = line(page)["name"]
    until("it shows newer updates", lambda: line(page)["step"] > before + 5, timeout_s=300.0)
    until("all records are new", lambda: page.get(f"/{name}/moment")["problems"] == [], timeout_s=120.0)


def test_it_begins_again_after_its_own_pod_was_deleted(own: Namespace) -> None:
    own.kubectl(
        "delete", "pod", "--selector", "app.kubernetes.io/component=ui", "--force", "--grace-period=0"
    )
    until("it is ready", lambda: len(own.ready("ui")) == 1, timeout_s=120.0)
    audit = own.audit()
    assert audit["balanced"], audit["problems"]
