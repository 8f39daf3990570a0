"""What several tests need: a real broker to hurt, and sinks to listen with."""
