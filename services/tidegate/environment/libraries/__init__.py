"""Environments of other libraries as tasks of a run: OpenEnv servers, and environments of `verifiers`."""
