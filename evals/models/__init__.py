"""Chat models of a run, selected by name."""

from langgraph_takeover.evals.models.checks import check_model, describe_ambiguous_models
from langgraph_takeover.evals.models.factory import build_llm, build_model
from langgraph_takeover.evals.models.names import (
    MODEL_NAME_FORMS,
    ORACLE,
    ModelName,
    ModelNameError,
    is_builtin,
    is_llm,
    parse_model_name,
)

__all__ = [
    "MODEL_NAME_FORMS",
    "ORACLE",
    "ModelName",
    "ModelNameError",
    "build_llm",
    "build_model",
    "check_model",
    "describe_ambiguous_models",
    "is_builtin",
    "is_llm",
    "parse_model_name",
]
