"""How the environment service is put together."""

from functools import partial

from tidegate.environment.config import EnvironmentConfig
from tidegate.environment.loops import ScoreLoop, SweepLoop
from tidegate.environment.scoring import Scorer
from tidegate.environment.servicer import EnvironmentServicer
from tidegate.environment.session_envs import make_session_env
from tidegate.environment.sessions import SessionLimits, Sessions
from tidegate.environment.state import ScoreCache
from tidegate.environment.tasks.registry import get_task
from tidegate.runtime.service import Loop, ServiceContext, ServiceParts, ServiceSpec


async def build(context: ServiceContext, config: EnvironmentConfig) -> ServiceParts:
    """Put the service's parts together; nothing runs yet. Without text work there are only sessions.

    Raises:
        NotFoundError: the run asks for a text task that nobody wrote.
    """
    workload = context.settings.workload
    scorer = Scorer(
        get_task,
        ScoreCache(num_max=config.cache_entries),
        context.clock,
        deadline_s=config.score_deadline_s,
        num_threads=config.verifier_threads,
    )
    sessions = Sessions(
        partial(make_session_env, allowed_modules=config.session_envs),
        SessionLimits(
            max_sessions=config.max_sessions,
            idle_s=config.session_idle_s,
            deadline_s=config.session_deadline_s,
        ),
        context.clock,
    )
    loops: dict[str, Loop] = {"sweep": SweepLoop(context, sessions, idle_s=config.session_idle_s).run}
    if workload.kind == "text":
        get_task(workload.env)
        score = ScoreLoop(context, config, scorer)
        loops |= {"score": score.run, "heartbeat": score.heartbeat}

    async def close() -> None:
        await sessions.close_all()
        scorer.close()

    servicer = EnvironmentServicer(scorer, sessions)
    return ServiceParts(loops=loops, servicers=[servicer.registration()], close=close)


SPEC = ServiceSpec(name="environment", config_type=EnvironmentConfig, build=build)
