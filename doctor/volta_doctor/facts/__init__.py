"""Facts: what was seen on a host, section by section, and nothing concluded from it."""
