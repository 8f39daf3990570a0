"""The code behind ``policy.kind`` where it names layers of a user's own: found, loaded, and its mistakes named."""

import inspect
from typing import Any

from tidegate.core.errors import ConfigError
from tidegate.runtime.config import POLICY_KINDS, PolicyConfig
from tidegate.runtime.own_code.loading import described, load_own
from tidegate.runtime.own_code.references import OwnReference, resolve

FORMS = {"shapes": ("num_inputs",), "features": ("params", "inputs", "xp")}


class OwnPolicyCode:
    """Fulfils ``models.own_layers.LayerCode``; what the code raises becomes a sentence with its file and line."""

    def __init__(self, code: Any, reference: OwnReference) -> None:
        """``code``: what the reference names.

        Raises:
            ConfigError: it has not the methods of layers.
        """
        self._code = code
        self._reference = reference
        for method, arguments in FORMS.items():
            try:
                inspect.signature(getattr(code, method, None)).bind(*arguments)  # pyright: ignore[reportArgumentType]
            except (TypeError, ValueError) as error:
                raise ConfigError(
                    f"policy.kind {reference.written} is no network",
                    why=f"it has no {method}({', '.join(arguments)})",
                    fix="define it: docs/own_code.md",
                ) from error

    def shapes(self, num_inputs: int) -> Any:
        """See ``LayerCode``."""
        return self._called("shapes", num_inputs)

    def features(self, params: Any, inputs: Any, xp: Any) -> Any:
        """See ``LayerCode``."""
        return self._called("features", params, inputs, xp)

    def init_params(self, num_inputs: int, rng: Any) -> Any:
        """See ``LayerCode``: None where the code has no such method."""
        if not callable(getattr(self._code, "init_params", None)):
            return None
        return self._called("init_params", num_inputs, rng)

    def _called(self, method: str, *arguments: Any) -> Any:
        try:
            return getattr(self._code, method)(*arguments)
        except Exception as error:  # own code may raise anything
            raise _failed(error, self._reference) from error


def own_policy_of(policy: PolicyConfig, *, folder: str) -> OwnReference | None:
    """The code of ``policy.kind``; None for one of this package. ``folder``: of the run file.

    Raises:
        ConfigError: there is no such code.
    """
    if not policy.is_own:
        return None
    return resolve(policy.kind, kind="policies", folder=folder, known=POLICY_KINDS)


def load_policy_code(policy: PolicyConfig, *, folder: str) -> OwnPolicyCode | None:
    """The code of ``policy.kind``, loaded into this process; None for a kind of this package.

    Raises:
        ConfigError: there is no such code, it cannot be loaded, or it has not the methods of layers.
    """
    reference = own_policy_of(policy, folder=folder)
    if reference is None:
        return None
    found: Any = load_own(reference)
    try:
        made = found() if inspect.isclass(found) else found
    except Exception as error:  # own code may raise anything
        raise _failed(error, reference) from error
    return OwnPolicyCode(made, reference)


def _failed(error: Exception, reference: OwnReference) -> ConfigError:
    return ConfigError(
        f"policy.kind {reference.written} failed",
        why=described(error, file=reference.source),
        fix="correct it: docs/own_code.md",
    )
