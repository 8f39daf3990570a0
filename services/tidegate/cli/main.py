"""The entry point. It loads nothing that the chosen command does not need."""

import sys

from tidegate.runtime.grpc_forks import leave_grpc_out_of_forks
from tidegate.runtime.process_end import end_process


def main() -> None:
    """Run the command line and end the process with its exit code."""
    leave_grpc_out_of_forks()
    arguments = sys.argv[1:]
    # A service process counts towards the platform's memory: it does not carry the command line's parser.
    if arguments[:1] == ["serve"]:
        from tidegate.runtime.lean_imports import load_lean_libraries

        # Before the modules that import those libraries.
        load_lean_libraries()
        from tidegate.launch.serve import main as serve

        end_process(serve(arguments[1:]))
    if arguments[:1] in (["up"], ["fork"]) and "--help" not in arguments:
        # Before a library is loaded: the command forks this process.
        from tidegate.launch.fork_server.preloading import prepare

        prepare()
    from tidegate.cli.app import run

    exit_code = run(arguments)
    if "obstore" in sys.modules:
        end_process(exit_code)
    sys.exit(exit_code)


if __name__ == "__main__":
    main()
