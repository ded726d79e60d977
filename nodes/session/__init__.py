"""One process's exclusive access to a thread, its sandbox and its snapshots."""
