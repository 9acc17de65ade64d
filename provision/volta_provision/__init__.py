"""Turns an intent (stack.yaml) into a lock, and a lock into a served host."""
