"""The commands of a fix, where the run is: settings and log files on one machine, kubectl and objects in a cluster."""

import msgspec


class Workloads(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The objects of Kubernetes that run the services of a release; without a release the run is on one machine.

    ``scaled``: `deployment/rl-actor` and the like, by service, of those whose number is an operator's.
    """

    namespace: str = ""
    release: str = ""
    scaled: dict[str, str] = {}

    def scale(self, service: str, replicas: int) -> str:
        """How to run that many instances of a service."""
        if not self.release:
            return f"--set {service}.replicas={replicas}"
        return f"{self._kubectl()} scale {self.scaled.get(service, service)} --replicas={replicas}"

    def setting(self, name: str, value: str) -> str:
        """How to give a setting of the run file."""
        return f"--set {'run.' if self.release else ''}{name}={value}"

    def reason(self, service: str, *, log: str = "") -> str:
        """Where to read why a service does not run. ``log``: the name of its file, if not the service's."""
        if not self.release:
            return f"see why in logs/{log or service}.log"
        component = service.replace("_", "-")
        labels = f"app.kubernetes.io/instance={self.release},app.kubernetes.io/component={component}"
        return f"see why by {self._kubectl()} describe pods -l {labels}"

    def _kubectl(self) -> str:
        return f"kubectl -n {self.namespace}" if self.namespace else "kubectl"


ONE_MACHINE = Workloads()
