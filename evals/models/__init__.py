"""Chat models of a run, selected by name."""

from langgraph_takeover.evals.models.endpoints import check_model, check_recording, describe_ambiguous_models
from langgraph_takeover.evals.models.entries import (
    ModelEntry,
    ModelPrice,
    Models,
    ModelsFileError,
    find_entry_difference,
    load_models,
)
from langgraph_takeover.evals.models.factory import (
    build_llm,
    build_model,
    build_notes_llm,
    build_notes_model,
    find_notes_limit,
)
from langgraph_takeover.evals.models.model_names import (
    MODEL_NAME_FORMS,
    ORACLE,
    ModelName,
    ModelNameError,
    drop_agent,
    is_builtin,
    is_llm,
    parse_model_name,
    require_entry,
    split_agent,
)

__all__ = [
    "MODEL_NAME_FORMS",
    "ORACLE",
    "ModelEntry",
    "ModelName",
    "ModelNameError",
    "ModelPrice",
    "Models",
    "ModelsFileError",
    "build_llm",
    "build_model",
    "build_notes_llm",
    "build_notes_model",
    "check_model",
    "check_recording",
    "describe_ambiguous_models",
    "drop_agent",
    "find_entry_difference",
    "find_notes_limit",
    "is_builtin",
    "is_llm",
    "load_models",
    "parse_model_name",
    "require_entry",
    "split_agent",
]
