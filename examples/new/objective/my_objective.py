"""An objective: PPO's clip around the policy at the start of a step. Replace the formula by your own.

Shapes: B completions, T tokens. docs/objectives.md lists what `tokens` and `settings` hold.
"""


def my_loss(tokens, settings):
    """Values to maximise, one a token; `run.yaml` names it as `my_objective.py:my_loss`."""
    ratios_BT = (tokens.logprobs_BT - tokens.proximal_BT).exp()
    clipped_BT = ratios_BT.clamp(1 - settings.clip_low, 1 + settings.clip_high)
    return (ratios_BT * tokens.advantages_BT).minimum(clipped_BT * tokens.advantages_BT)
