"""Runs the agent for the training: claims episodes of the gateway, calls the agent, posts its reward.

TIDEGATE_GATEWAY_KEY=... python worker.py http://127.0.0.1:8801 32
"""

import json
import os
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import my_agent
import openai

TIMEOUT_S = 60.0
WAIT_S = 10
ASK_AGAIN_S = 0.5


def post(url, key, body=None):
    """One call of the gateway."""
    request = urllib.request.Request(
        url,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
        method="POST",
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
        return json.loads(response.read() or b"{}")


def claim(base, key):
    """The next episode; None while there is none, or the run has not started yet."""
    try:
        return post(f"{base}/tidegate/episodes?wait_s={WAIT_S}", key)
    except urllib.error.HTTPError as error:
        if error.code == 503:
            return None
        raise
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return None


def work(base, key, shared):
    """One episode after the other, until the process ends; ``shared`` holds the connections."""
    while True:
        episode = claim(base, key)
        if episode is None:
            time.sleep(ASK_AGAIN_S)
            continue
        client = shared.with_options(base_url=episode["base_url"], api_key=episode["api_key"])
        question = episode["task"]["prompt"]
        try:
            answered = my_agent.answer(client, question)
            value = my_agent.reward(question, answered, episode["answer"])
            post(episode["reward_url"], episode["reward_key"], {"reward": value})
        except Exception as error:  # of one episode, which the gateway ends without a reward
            sys.stderr.write(f"episode {episode['episode_id']}: {type(error).__name__}: {error}\n")


def main():
    """As many agents at once as the command line asks for."""
    base, num_agents = sys.argv[1], int(sys.argv[2])
    key = os.environ["TIDEGATE_GATEWAY_KEY"]
    shared = openai.OpenAI(base_url=base, api_key="each episode has its own")
    with ThreadPoolExecutor(max_workers=num_agents) as threads:
        for each in [threads.submit(work, base, key, shared) for _ in range(num_agents)]:
            each.result()


if __name__ == "__main__":
    main()
