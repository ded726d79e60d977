"""Garbage collection over all back ends."""
