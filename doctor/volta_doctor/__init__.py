"""Says what is wrong with a V100 host, why, and the exact fix."""
