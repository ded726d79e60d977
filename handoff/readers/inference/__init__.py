"""Inference of the file changes of a run whose recording contains no files."""
