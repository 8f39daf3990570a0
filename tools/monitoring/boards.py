"""All dashboards. Metrics come from ``tidegate.catalogue``, recorded series from ``slo_rules``."""

from tools.monitoring.board_actors import ACTORS
from tools.monitoring.board_admission import ADMISSION
from tools.monitoring.board_broker import BROKER
from tools.monitoring.board_flow import FLOW
from tools.monitoring.board_language import LANGUAGE
from tools.monitoring.board_learner import LEARNER
from tools.monitoring.board_machines import MACHINES
from tools.monitoring.board_objectives import OVERVIEW
from tools.monitoring.board_runs import RUNS
from tools.monitoring.board_versions import VERSIONS

BOARDS = (RUNS, OVERVIEW, FLOW, ACTORS, LEARNER, LANGUAGE, BROKER, VERSIONS, ADMISSION, MACHINES)
