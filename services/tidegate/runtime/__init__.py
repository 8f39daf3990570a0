"""What every service stands on: one lifecycle, config sections, the bus, rpc, telemetry and the clock."""
