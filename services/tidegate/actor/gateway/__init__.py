"""The recording gateway: any program that speaks the OpenAI API is an agent, and its calls are one trajectory.

consumes: tasks from the actor's loops; HTTP calls of agents; rewards posted by their judges
produces: one sample an episode: the tokens the engine was given and wrote, in order, with logprobs and versions
waits for: agents, up to their deadlines; a slot of the engine
unblocked by: agents that call or end; the deadlines that end them

``messages`` the agents' messages, ``formats`` messages to tokens and back, ``requests`` and ``responses`` the API's
shapes, ``chains`` the recorder, ``episodes`` keys and bounds, ``calls`` one call, ``server`` HTTP, ``programs`` an
agent's process, ``runner`` tasks in and rollouts out.
"""
