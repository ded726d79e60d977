"""Connections to endpoints: limits of replies, calls with a deadline, and the client for event loops."""
