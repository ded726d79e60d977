"""The contract of every external agent, as tests for any adapter.

Use it in a pytest module with two fixtures:

    from langgraph_takeover.testing.agents import *

    @pytest.fixture
    def adapter() -> AgentAdapter:
        return MyAgent()

    @pytest.fixture
    def program() -> tuple[str, ...]:
        return find_program(MyAgent()).host_argv

`pure` needs the adapter alone. `live` runs the agent's program against a scripted endpoint on the loopback interface; its
tests have the mark `slow`. Each can be imported alone.
"""

try:
    import pytest
except ImportError as error:
    raise ImportError(
        "the contract is tests for pytest: pip install 'langgraph-takeover[contract]'"
    ) from error

for _part in ("kit", "pure", "sessions", "live"):
    pytest.register_assert_rewrite(f"{__name__}.{_part}")

from langgraph_takeover.testing.agents.live import *  # noqa: E402, F403
from langgraph_takeover.testing.agents.pure import *  # noqa: E402, F403
