"""Rank 1 of a learner that stands by, in a process of its own."""

import asyncio
import os
from collections.abc import Mapping

from tidegate.learner.config import LearnerConfig
from tidegate.learner.main import follow_instead
from tidegate.runtime.config import Settings
from tidegate.runtime.process_end import end_process


def main(config: LearnerConfig, settings: Settings, environment: Mapping[str, str]) -> None:
    """Follow rank 0 until it stops; exits as the service does."""
    os.environ.update(environment)
    following = follow_instead(config, settings)
    assert following is not None
    end_process(asyncio.run(following))
