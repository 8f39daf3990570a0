"""The base of every service: one lifecycle, config sections, the bus, rpc, telemetry and the clock."""
