"""Models of a models file: endpoints, options and prices, for agents, successors and supervisors."""

from langgraph_takeover.evals.models.entries import ModelEntry, ModelPrice, load_models
from langgraph_takeover.evals.models.factory import build_chat_model, build_vendor_model

__all__ = ["ModelEntry", "ModelPrice", "build_chat_model", "build_vendor_model", "load_models"]
