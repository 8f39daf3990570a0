"""The countdown of `openenv_server.py` by OpenEnv's own classes: ``python openenv_countdown.py PORT`` serves it."""

import importlib
import sys
from typing import Any

# By name, because it is not in the environment that the types are checked in.
core: Any = importlib.import_module("openenv.core.env_server")
types: Any = importlib.import_module("openenv.core.env_server.types")


class TakeAction(types.Action):
    take: int


class LeftObservation(types.Observation):
    left: str


class Countdown(core.Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    count = 0

    def reset(self, seed: int = 0, **_: Any) -> Any:
        self.count = seed
        return LeftObservation(left=f"{seed} left", done=False, reward=None)

    def step(self, action: Any, **_: Any) -> Any:
        if action.take == 13:
            raise RuntimeError("a defect")
        self.count -= action.take
        return LeftObservation(left=f"{self.count} left", done=self.count <= 0, reward=float(action.take))

    @property
    def state(self) -> Any:
        return types.State(step_count=0)


def main() -> None:
    uvicorn: Any = importlib.import_module("uvicorn")
    app = core.create_app(Countdown, TakeAction, LeftObservation, env_name="countdown", max_concurrent_envs=2)
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")


if __name__ == "__main__":
    main()
