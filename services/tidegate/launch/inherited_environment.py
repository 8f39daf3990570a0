"""The environment variables that a process of a run inherits from `tidegate up`: what programs need, and no secrets.

Keys of judges, of the gateway and of clouds stand in the environment of the user's shell. A service gets those that its
own section of the run file names (``processes.named_variables``), and no other service does.
"""

from collections.abc import Mapping

NAMES = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "TZ", "LANG", "LANGUAGE"),
        *("TMPDIR", "TEMP", "TMP", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "LD_PRELOAD", "DYLD_LIBRARY_PATH"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
        *("DISPLAY", "XAUTHORITY", "GOMAXPROCS", "GOMEMLIMIT", "GRPC_VERBOSITY", "GRPC_TRACE"),
        *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
    }
)
PREFIXES = (
    *("LC_", "XDG_", "PYTHON", "TIDEGATE_", "OTEL_", "MALLOC_"),
    *("OMP_", "MKL_", "OPENBLAS_", "NUMEXPR_", "KMP_", "GOMP_", "VECLIB_"),
    *("CUDA", "NVIDIA_", "NCCL_", "GLOO_", "TORCH", "PYTORCH_", "TRITON_", "ROCR_", "HIP_", "HSA_"),
    *("HF_", "TRANSFORMERS_", "TOKENIZERS_", "VLLM_", "SGLANG_"),
    *("MUJOCO_", "PYOPENGL_", "SDL_", "PYGAME_", "ALE_"),
)
# Of names that would be inherited by their beginning: HF_TOKEN, TIDEGATE_GATEWAY_KEY.
SECRET_ENDINGS = ("_KEY", "_TOKEN", "_SECRET", "_PASSWORD", "_CREDENTIALS")


def inherited(environ: Mapping[str, str], named: tuple[str, ...] = ()) -> dict[str, str]:
    """The part of ``environ`` that a process inherits: the variables above, and those ``named`` in the run file."""
    return {name: value for name, value in environ.items() if name in named or _is_inherited(name)}


def _is_inherited(name: str) -> bool:
    upper = name.upper()  # programs read proxies in both cases
    return (upper in NAMES or upper.startswith(PREFIXES)) and not upper.endswith(SECRET_ENDINGS)
