"""A reward: the share of digits at their place. `run.yaml` names it as `my_reward.py:score`."""


def score(prompt, completion, answer):
    """Any number is a reward."""
    if len(completion) != len(answer):
        return 0.0
    return sum(a == b for a, b in zip(completion, answer)) / len(answer)
