"""The literal table of benches. A new one is a file in this folder and a line here."""

import msgspec


class BenchEntry(msgspec.Struct, frozen=True):
    """``target`` is ``module:function``, a function from ``BenchSetting`` to ``BenchResult``; imported when it runs.

    ``asked_for``: too long for every round, so it runs by name only.
    """

    target: str
    summary: str
    asked_for: bool = False


BENCHES: dict[str, BenchEntry] = {
    "cartpole": BenchEntry(
        "benchmarks.cartpole:run",
        "environment steps a CPU-second end to end, beside the same algorithm without services",
    ),
    "trajectories": BenchEntry(
        "benchmarks.trajectories:run",
        "the path of trajectories into the ledger, beside raw JetStream",
    ),
    "replay": BenchEntry(
        "benchmarks.replay:run",
        "inserts and samples of Atari transitions through the store's socket, and what a million takes",
        asked_for=True,
    ),
    "weights": BenchEntry(
        "benchmarks.weights:run", "pulling a policy, beside a raw gRPC stream over loopback"
    ),
    "telemetry": BenchEntry("benchmarks.telemetry:run", "telemetry on, beside telemetry off"),
    "trackers": BenchEntry(
        "benchmarks.trackers:run", "each experiment tracker on, beside none", asked_for=True
    ),
    "memory": BenchEntry("benchmarks.memory:run", "memory of each process of a running platform"),
    "startup": BenchEntry("benchmarks.startup:run", "from `tidegate up` to the first gradient"),
    "refusals": BenchEntry(
        "benchmarks.refusals:run", "from `tidegate up` to the sentence why a run cannot work"
    ),
    "faults": BenchEntry(
        "benchmarks.faults:run",
        "steps with environments that raise, return NaN or hang, beside healthy ones",
        asked_for=True,
    ),
    "recovery": BenchEntry(
        "benchmarks.recovery:run",
        "learner steps of a run whose processes are killed, beside one that is left alone",
        asked_for=True,
    ),
    "chaos": BenchEntry(
        "benchmarks.recovery:run_frequent",
        "a random process killed every three seconds: accounting, and seconds to the next step",
        asked_for=True,
    ),
    "soak": BenchEntry(
        "benchmarks.soak:run",
        "memory, descriptors and disk of a run of two hours",
        asked_for=True,
    ),
    "tails": BenchEntry(
        "benchmarks.tails:run",
        "asynchronous beside synchronous, with and without a tail of rollout times",
    ),
    "disturbances": BenchEntry(
        "benchmarks.disturbances:run", "one service made slow for a minute in the middle of a run"
    ),
    "admission": BenchEntry(
        "benchmarks.admission:run", "one decision at 10,000 actors, and admission's share of a core"
    ),
    "scaling": BenchEntry(
        "benchmarks.scaling:run",
        "one to four actors, one and two ranks of each classic trainer, beside what `tidegate plan` predicts",
        asked_for=True,
    ),
    "pong": BenchEntry(
        "benchmarks.pong:run",
        "Pong from images with one and two actors, beside the sum of what each part of a step costs by itself",
        asked_for=True,
    ),
    "fleet": BenchEntry(
        "benchmarks.fleet:run",
        "50 to 200 actors against the services: trajectories a second and CPU by service, beside `tidegate sim`",
        asked_for=True,
    ),
    "lag": BenchEntry("benchmarks.lag:run", "what the staleness budget buys and costs"),
    "staleness": BenchEntry(
        "benchmarks.staleness:run",
        "reward against staleness for each objective of language models",
        asked_for=True,
    ),
    "overlap": BenchEntry(
        "benchmarks.overlap:run",
        "a language model's reward over time, asynchronous beside synchronous, with slow verifiers and without",
        asked_for=True,
    ),
    "trl": BenchEntry(
        "benchmarks.trl:run",
        "GRPO of SmolLM2-135M beside TRL on the same cores",
        asked_for=True,
    ),
}
