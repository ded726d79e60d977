"""The contract of every machine as tests, for any backend to run, ours or another's.

In a test module of the backend's own, beside pytest:

    from sandbox.contract import *

    @pytest.fixture(scope="session")
    def kit(tmp_path_factory):
        repository = tmp_path_factory.mktemp("repository") / "testbed"
        make_repository(repository)
        kit = Kit({"backend": "host", "directory": repository}, start=my.start, thaw=my.thaw)
        with kit.ended():
            yield kit
        kit.remove_leftovers(kit.owner)

`commands`, `files`, `snapshots`, `attacks` and `races` are its five parts, which can be taken one by one as well.
"""

try:
    import pytest
except ImportError as error:
    raise ImportError(
        "the contract is tests for pytest: pip install '.[contract]' in the checkout of langgraph-takeover"
    ) from error

for _part in ("kit", "commands", "files", "snapshots", "attacks", "races"):
    pytest.register_assert_rewrite(f"sandbox.contract.{_part}")

from langgraph_takeover.sandbox.contract.attacks import *  # noqa: E402, F403
from langgraph_takeover.sandbox.contract.commands import *  # noqa: E402, F403
from langgraph_takeover.sandbox.contract.files import *  # noqa: E402, F403
from langgraph_takeover.sandbox.contract.kit import *  # noqa: E402, F403
from langgraph_takeover.sandbox.contract.races import *  # noqa: E402, F403
from langgraph_takeover.sandbox.contract.snapshots import *  # noqa: E402, F403
