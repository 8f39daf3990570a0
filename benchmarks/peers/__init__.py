"""What the benches measure against: plain programs that do the same work without the platform."""
