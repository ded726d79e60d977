"""The contract of every sandbox, as tests for any back end.

Use it in a pytest module of the back end:

    from langgraph_takeover.testing.sandboxes import *

    @pytest.fixture(scope="session")
    def kit(tmp_path_factory):
        repository = tmp_path_factory.mktemp("repository") / "testbed"
        make_repository(repository)
        kit = Kit({"backend": "host", "directory": repository}, start=my.start, restore=my.restore)
        with kit.close_started():
            yield kit
        kit.remove_stale_resources(kit.owner)

`commands`, `timeouts`, `files`, `snapshots`, `attacks`, `races`, `programs`, `listening` and `servers`
are its parts; each can be imported alone.
"""

try:
    import pytest
except ImportError as error:
    raise ImportError(
        "the contract is tests for pytest: pip install 'langgraph-takeover[contract]'"
    ) from error

for _part in (
    "kit",
    "commands",
    "timeouts",
    "files",
    "snapshots",
    "attacks",
    "races",
    "programs",
    "listening",
    "servers",
):
    pytest.register_assert_rewrite(f"{__name__}.{_part}")

from langgraph_takeover.testing.sandboxes.attacks import *  # noqa: E402, F403
from langgraph_takeover.testing.sandboxes.commands import *  # noqa: E402, F403  # noqa: E402, F403
from langgraph_takeover.testing.sandboxes.files import *  # noqa: E402, F403
from langgraph_takeover.testing.sandboxes.host_parts import *  # noqa: E402, F403  # noqa: E402, F403
from langgraph_takeover.testing.sandboxes.kit import *  # noqa: E402, F403
from langgraph_takeover.testing.sandboxes.races import *  # noqa: E402, F403
from langgraph_takeover.testing.sandboxes.saved_states import *  # noqa: E402, F403
from langgraph_takeover.testing.sandboxes.servers import *  # noqa: E402, F403
