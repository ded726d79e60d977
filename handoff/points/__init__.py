"""Handoff points: detectors for source edits and validations, and outcomes of validations."""
