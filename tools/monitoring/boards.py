"""The dashboards: what each panel asks. Every metric comes from the catalogue, every rule from ``slo_rules``."""

from tools.monitoring.boards_control import ADMISSION, VERSIONS
from tools.monitoring.boards_run import FLOW, OVERVIEW
from tools.monitoring.boards_services import ACTORS, BROKER, LEARNER

BOARDS = (OVERVIEW, FLOW, ACTORS, LEARNER, BROKER, VERSIONS, ADMISSION)
