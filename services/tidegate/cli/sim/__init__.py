"""``tidegate sim``: the services under faults, a fleet of any size, or small fleets under chaos."""
