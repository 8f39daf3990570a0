"""Every name that the platform reports under: statistics, metrics, spans and attributes. Declarations only, no IO."""
