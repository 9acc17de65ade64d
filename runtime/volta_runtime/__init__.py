"""The embedded engine: serves 4-bit checkpoints on sm_70 and, for development, on CPUs."""
