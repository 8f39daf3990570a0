"""Runs the agent on one task and posts its reward: what ``actor.gateway.command`` starts once an episode.

The agent's process sees neither the answer nor the key of the reward.
"""

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

AGENT = Path(__file__).with_name("calculator_agent.py")
TIMEOUT_S = 60.0


def post_reward(url: str, key: str, reward: float) -> None:
    """Post the reward to the gateway, which ends the episode."""
    request = urllib.request.Request(
        url,
        data=json.dumps({"reward": reward, "components": {"exact": reward}}).encode(),
        headers={"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
        method="POST",
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT_S):
        pass


def main() -> None:
    """Run one episode."""
    task = json.loads(os.environ["TIDEGATE_TASK"])
    judged_by = json.loads(os.environ["TIDEGATE_REWARD"])
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")}
    done = subprocess.run(
        [sys.executable, str(AGENT), task["prompt"]],
        env=kept,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    sys.stderr.write(done.stderr)
    exact = done.returncode == 0 and done.stdout.strip() == judged_by["answer"]
    post_reward(judged_by["url"], judged_by["key"], float(exact))


if __name__ == "__main__":
    main()
