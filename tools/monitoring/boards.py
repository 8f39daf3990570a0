"""All dashboards. Metrics come from ``tidegate.catalogue``, recorded series from ``slo_rules``."""

from tools.monitoring.boards_control import ADMISSION, VERSIONS
from tools.monitoring.boards_run import FLOW, OVERVIEW
from tools.monitoring.boards_services import ACTORS, BROKER, LEARNER

BOARDS = (OVERVIEW, FLOW, ACTORS, LEARNER, BROKER, VERSIONS, ADMISSION)
