"""The same agent for many episodes: claims episodes of a gateway over HTTP, runs them in threads, posts rewards.

TIDEGATE_GATEWAY_KEY=... python examples/calculator_worker.py http://127.0.0.1:8800 16
"""

import json
import os
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
from calculator_agent import answer
from calculator_harness import post_reward

ASK_AGAIN_S = 0.2
TIMEOUT_S = 60.0


def claim(base: str, key: str) -> dict[str, Any] | None:
    """The next episode; None when none is available or the gateway is not up yet."""
    request = urllib.request.Request(
        f"{base}/tidegate/episodes", headers={"Authorization": f"Bearer {key}"}, method="POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        if error.code != 503:
            raise
    except urllib.error.URLError:
        pass
    return None


def work(base: str, key: str, shared: openai.OpenAI) -> None:
    """Run one episode after the other until the process ends; ``shared`` holds the connections."""
    while True:
        episode = claim(base, key)
        if episode is None:
            time.sleep(ASK_AGAIN_S)
            continue
        client = shared.with_options(base_url=episode["base_url"], api_key=episode["api_key"])
        try:
            exact = answer(client, episode["task"]["prompt"]) == episode["answer"]
            post_reward(episode["reward_url"], episode["reward_key"], float(exact))
        except (openai.OpenAIError, OSError) as error:
            sys.stderr.write(f"episode {episode['episode_id']}: {error}\n")  # the gateway ends the episode


def main() -> None:
    """Run as many agents in parallel as the command line asks for."""
    base, agents = sys.argv[1], int(sys.argv[2])
    key = os.environ["TIDEGATE_GATEWAY_KEY"]
    shared = openai.OpenAI(base_url=base, api_key="each episode has its own")
    with ThreadPoolExecutor(max_workers=agents) as threads:
        for done in [threads.submit(work, base, key, shared) for _ in range(agents)]:
            done.result()


if __name__ == "__main__":
    main()
