"""A learner of two ranks, one in each pod: it trains as one, and a rank's death restarts both from the checkpoint."""

import pytest

from tests.cluster.conftest import cartpole_values, install
from tests.cluster.kube import Namespace, trains, until

pytestmark = [pytest.mark.cluster, pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

RECOVERY_TIMEOUT_S = 300.0


@pytest.fixture(scope="module")
def pair(namespace: str, tmp_path_factory: pytest.TempPathFactory) -> Namespace:
    release = Namespace(namespace, "pair")
    values = cartpole_values(tmp_path_factory.mktemp("values"))
    install(release, values, "--set", "learner.ranks=2", "--set", "run.learner.rank_timeout_s=20")
    return release


def test_two_ranks_train_to_the_target(pair: Namespace) -> None:
    assert len(pair.ready("learner")) == 2
    pair.tidegate("await", "--until", "mean_return>=475", "--timeout", "8m", timeout_s=500)


@pytest.mark.parametrize("rank", [1, 0])
def test_the_death_of_a_rank_restarts_the_group_from_its_checkpoint(
    pair: Namespace, rank: int, figures: dict[str, object]
) -> None:
    trains(pair, more=5, timeout_s=RECOVERY_TIMEOUT_S)
    lineage = pair.status()["version"].partition("@")[0]
    pair.kubectl("delete", "pod", f"pair-learner-{rank}", "--grace-period=0", "--force")
    until(
        "a new lineage",
        lambda: pair.status()["version"].partition("@")[0] not in ("", lineage),
        timeout_s=RECOVERY_TIMEOUT_S,
    )
    figures[f"rank_{rank}_deleted_trains_again_s"] = trains(pair, more=5, timeout_s=RECOVERY_TIMEOUT_S)
    until("both ranks", lambda: len(pair.ready("learner")) == 2, timeout_s=RECOVERY_TIMEOUT_S)
    audit = pair.audit()
    assert audit["balanced"], audit["problems"]
    assert audit["trained_twice"] == 0
    assert audit["max_lag_trained"] <= 2
