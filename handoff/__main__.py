"""`python -m handoff`: the command line of the runtime, which lives in `graph.cli`, with the models of `evals`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from langgraph_takeover.graph.cli.handoff_cli import main as run

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel


def main() -> None:
    run(_build_model)


def _build_model(agent: str, name: str) -> tuple[BaseChatModel, str]:
    from langgraph_takeover.evals.models.factory import build_agent_model

    return build_agent_model(agent, name)


if __name__ == "__main__":
    main()
