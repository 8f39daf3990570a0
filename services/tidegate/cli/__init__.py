"""The command line: starts platforms, watches them, and answers questions about them, running or stopped."""
