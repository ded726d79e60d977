"""Nodes that run an agent's tools: shell, editor, custom tools."""
