"""The figures of an evaluation on held-out problems: of the whole, and of each environment where there are several."""

from collections.abc import Mapping, Sequence

# A verifier gives 1 for a solved problem and less for anything else.
SOLVED_REWARD = 1.0


def held_out_figures(
    rewards: Sequence[tuple[str, float | None]], weights: Mapping[str, float]
) -> dict[str, float]:
    """The fields of the event. ``rewards``: environment and reward of each problem; None has no verdict.

    ``weights``: of each environment by its name, empty where the run has one. With several, the whole is the mean of
    the environments by their weights, however many problems each has: what the policy scores on prompts as they are
    drawn. Environments without a verdict are left out of it, and those of weight 0 stand beside it.
    """
    known = [(env, reward) for env, reward in rewards if reward is not None]
    if not weights:
        return _figures([reward for _, reward in known])
    found: dict[str, float] = {}
    of_env: dict[str, dict[str, float]] = {}
    for env in weights:
        if of_this := [reward for name, reward in known if name == env]:
            of_env[env] = _figures(of_this)
    # Without a verdict of any environment that is trained, those that are only evaluated are the whole.
    drawn = {env: weights[env] for env in of_env if weights[env]} or dict.fromkeys(of_env, 1.0)
    total = sum(drawn.values())
    for name in ("solved_share", "mean_reward"):
        found[name] = sum(weight * of_env[env][name] for env, weight in drawn.items()) / total
    found["num_problems"] = len(known)
    for env, figures in of_env.items():
        found |= {f"{name}.{env}": value for name, value in figures.items()}
        found[f"weight.{env}"] = weights[env]
    return found


def _figures(rewards: Sequence[float]) -> dict[str, float]:
    return {
        "solved_share": sum(reward >= SOLVED_REWARD for reward in rewards) / len(rewards),
        "mean_reward": sum(rewards) / len(rewards),
        "num_problems": len(rewards),
    }
