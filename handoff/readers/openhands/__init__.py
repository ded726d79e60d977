"""Recorded runs of OpenHands, in the formats of its two generations."""
