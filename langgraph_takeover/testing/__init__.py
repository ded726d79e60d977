"""Contracts as tests for third parties: of any sandbox, and of any adapter of an external agent."""
