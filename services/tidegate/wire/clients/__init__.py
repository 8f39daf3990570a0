"""Typed clients: core values in, core values out; protobuf stays inside this package."""
