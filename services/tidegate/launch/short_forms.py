"""Short forms of a run file: a text where the typed document has a section.

workload.dataset: problems.jsonl            dataset: {path: problems.jsonl}
workload.reward: my_reward.py:score         env: my_reward.py:score, where the run is of text
workload.envs: [arithmetic]                 envs: [{env: arithmetic}]; a dataset as that of workload
environment.verifiers.mine: my.py:score     mine: {kind: python, path: my.py, function: score}
track: [mlflow]                             track: [{tracker: mlflow}]
callbacks: [my_callbacks.py:Notify]         callbacks: [{code: my_callbacks.py:Notify}]
backup: s3://bucket/prefix                  backup: {to: s3://bucket/prefix}
"""

from typing import Any, cast

from tidegate.core.errors import ConfigError

# The types and fields that also take a text; the chart's schema allows it there.
SHORT_FIELDS = (
    ("WorkloadConfig", "dataset"),
    ("WorkloadConfig", "reward"),
    ("WorkloadConfig", "envs"),
    ("EnvShare", "dataset"),
    ("EnvironmentConfig", "verifiers"),
    ("RunFile", "track"),
    ("RunFile", "callbacks"),
    ("RunFile", "backup"),
)


def expand_short_forms(raw: dict[str, Any]) -> dict[str, Any]:
    """A copy of a document with its short forms written out; whatever is malformed stays, for the types to refuse.

    Raises:
        ConfigError: a run of text has both an environment and a reward function.
    """
    result = dict(raw)
    workload = _section(raw, "workload")
    if workload is not None:
        dataset, reward = workload.get("dataset"), workload.get("reward")
        if isinstance(dataset, str):
            workload["dataset"] = {"path": dataset}
        if isinstance(reward, str) and workload.get("kind") == "text":
            if "env" in workload:
                raise ConfigError(
                    "workload has both `env` and `reward`",
                    why="an env scores its own problems, and a reward those of workload.dataset",
                    fix="remove one of them, or add the function to environment.verifiers",
                )
            workload["env"] = workload.pop("reward")
        envs = workload.get("envs")
        if isinstance(envs, list):
            workload["envs"] = [_env_share(each) for each in cast("list[Any]", envs)]
        result["workload"] = workload
    environment = _section(raw, "environment")
    verifiers = None if environment is None else _section(environment, "verifiers")
    if environment is not None and verifiers is not None:
        environment["verifiers"] = {
            name: _python_verifier(value) if isinstance(value, str) else value
            for name, value in verifiers.items()
        }
        result["environment"] = environment
    for key, field in (("track", "tracker"), ("callbacks", "code")):
        entries = raw.get(key)
        if isinstance(entries, list):
            result[key] = [
                {field: each} if isinstance(each, str) else each for each in cast("list[Any]", entries)
            ]
    if isinstance(result.get("backup"), str):
        result["backup"] = {"to": result["backup"]}
    return result


def _section(parent: dict[str, Any], key: str) -> dict[str, Any] | None:
    section = parent.get(key)
    return dict(cast("dict[str, Any]", section)) if isinstance(section, dict) else None


def _env_share(entry: Any) -> Any:
    """An entry of ``workload.envs``: a text is an environment of weight 1."""
    if isinstance(entry, str):
        return {"env": entry}
    if not isinstance(entry, dict):
        return entry
    share = dict(cast("dict[str, Any]", entry))
    if isinstance(share.get("dataset"), str):
        share["dataset"] = {"path": share["dataset"]}
    return share


def _python_verifier(reference: str) -> dict[str, str]:
    path, colon, function = reference.rpartition(":")
    return {"kind": "python", "path": path if colon else reference, "function": function if colon else ""}
