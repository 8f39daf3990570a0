"""The policy of another run that this one begins from: a file of the run folder, written before the first start.

The optimiser is a new one, and so are critics besides the policy. A target network begins as a copy of the policy, and
so do the features that target critics read.
"""

from pathlib import Path

from tidegate.core.errors import ConfigError, TidegateError
from tidegate.learner.checkpoint_tensors import read_tensors
from tidegate.learner.optim.critics import TARGETS
from tidegate.learner.optim.language_model import LanguageModelTrainer
from tidegate.learner.optim.port import Trainer, TrainerState
from tidegate.learner.optim.target_network import without_target

BEGUN_FILE = "begun_policy.safetensors"


def begin_from_another(trainer: Trainer, data: Path) -> bool:
    """Set a fresh trainer to the policy in ``data`` of the run folder; False where the run begins from none.

    Raises:
        ConfigError: it is the policy of another network.
    """
    path = data / BEGUN_FILE
    if not path.is_file():
        return False
    policy, _ = read_tensors(path)
    try:
        if isinstance(trainer, LanguageModelTrainer):
            trainer.begin_from(policy)
        else:
            fresh = trainer.state()
            shared = {name: policy[key] for key in policy if (name := f"{TARGETS}{key}") in fresh.tensors}
            own = TrainerState(tensors=without_target(fresh.tensors) | shared, values=fresh.values)
            trainer.restore(policy, own)
    except (TidegateError, KeyError, RuntimeError) as error:
        raise ConfigError(
            "The policy of begin_from does not fit this run's network",
            why=error.what if isinstance(error, TidegateError) else str(error)[:300],
            fix="give policy and workload the parent's spaces and sizes, or leave out begin_from",
        ) from error
    return True
