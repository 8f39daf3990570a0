"""The error without isolation: the missing part, and how an operator provides it."""

from tidegate.environment.sandbox.port import IsolationUnavailableError

LINUX_FIX = (
    "allow user namespaces to this process (docs/sandbox.md): in Kubernetes environment.runtimeClassName with a "
    "runtime of virtual machines, or hostUsers: false with a seccomp profile that allows unshare and mount; on a "
    "host user.max_user_namespaces above 0, and no kernel.apparmor_restrict_unprivileged_userns"
)


def isolation_unavailable(missing: str, *, fix: str = LINUX_FIX) -> IsolationUnavailableError:
    """The error that names the missing part."""
    return IsolationUnavailableError(
        "Model-written code cannot be isolated, so none is run", why=missing, fix=fix
    )
