"""The program that loads a curriculum and asks it twice: ``python -m tidegate.task_queue.own_curriculum.trial``.

`tidegate check` and `tidegate up` ask by it before anything of a run starts.
"""

import msgspec

from tidegate.core.errors import ConfigError
from tidegate.core.own_weights import CurriculumBin, WeightsRefused, checked_weights
from tidegate.runtime.child_question import answer_question
from tidegate.runtime.own_code.loading import described
from tidegate.runtime.own_code.references import OwnReference
from tidegate.task_queue.own_curriculum.code import OwnCurriculum, load_curriculum
from tidegate.task_queue.own_curriculum.messages import WeightsFailed, WeightsQuestion

TRIED_STEP = 10
# Of the bins in turn, once there are rewards: neither mastered nor hopeless, so that some weight is above 0.
TRIED_RATES = (0.5, 0.25, 0.75)


class TrialQuestion(msgspec.Struct, frozen=True):
    """``bins``: those of the run's dataset, before anything is drawn."""

    reference: OwnReference
    bins: tuple[CurriculumBin, ...]
    seed: int


def tried(question: TrialQuestion) -> None:
    """Load it, and ask it at the start of a run and once all bins have rewards.

    Raises:
        ConfigError: it cannot be loaded, or gives no usable weights.
    """
    reference = question.reference
    try:
        curriculum = load_curriculum(reference)
    except ConfigError:
        raise
    except BaseException as error:  # the code is the user's
        raise ConfigError(
            f"{reference.written} cannot be loaded",
            why=described(error, file=reference.source),
            fix="correct it, then start the run again",
        ) from error
    rewarded = tuple(
        msgspec.structs.replace(each, num_drawn=8, success_rate=TRIED_RATES[index % len(TRIED_RATES)])
        for index, each in enumerate(question.bins)
    )
    _try(curriculum, reference, WeightsQuestion(question.bins, 0, question.seed), "before the first reward")
    _try(
        curriculum, reference, WeightsQuestion(rewarded, TRIED_STEP, question.seed), "once there are rewards"
    )


def _try(curriculum: OwnCurriculum, reference: OwnReference, question: WeightsQuestion, when: str) -> None:
    answer = curriculum.answer(question)
    found = (
        answer
        if isinstance(answer, WeightsFailed)
        else checked_weights(answer.weights, [each.name for each in question.bins])
    )
    if isinstance(found, WeightsFailed | WeightsRefused):
        raise ConfigError(
            f"{reference.written} gives no weights {when}",
            why=found.why,
            fix="return one finite number of 0 or more for each bin: docs/own_code.md",
        )


if __name__ == "__main__":
    answer_question(TrialQuestion, tried)
