"""The directory of the repository: recordings with evidence of each kind, and what the readers select."""

from __future__ import annotations

import json
from typing import Any

import pytest

from langgraph_takeover.handoff.interop.session_records import list_handoff_points
from langgraph_takeover.handoff.readers import describe_warnings, parse_trace
from langgraph_takeover.handoff.recordings.workspace import Workspace, WorkspaceEvidence
from langgraph_takeover.handoff.trace.events import Trace

from .session_rows import (
    Row,
    atif_call,
    atif_document,
    atif_results,
    atif_step,
    claude_rows,
    claude_steps,
    mini_run,
    text_part,
)

FAILED = "1 failed in 0.1s"
DIRECTORIES = (
    "/workspace", "/app", "/workspace/org__repo__1.0", "/workspace/project/shop", "/home/user/src/x", "/data/projects/x",
    "/opt/app", "/usr/src/app", "/",
)  # fmt: skip


def sdk_events(steps: list[tuple[str, str]], directory: str, task: str = "fix") -> list[Row]:
    """Events of the OpenHands SDK; a step is a command, or the path of an edit, and its output or a later directory."""
    rows: list[Row] = [
        {"kind": "MessageEvent", "source": "user", "llm_message": {"content": [text_part(task)]}}
    ]
    for number, (action, output) in enumerate(steps):
        call = {"id": f"a{number}", "tool_call_id": f"c{number}", "kind": "ActionEvent"}
        observed: Row = {"content": [text_part(output)]}
        if action.startswith("/"):
            call |= {"tool_name": "file_editor"}
            arguments = {"command": "str_replace", "path": action, "old_str": "1", "new_str": "2"}
            observed |= {"path": action, "old_content": "1", "new_content": f"2{number}", "prev_exist": True}
        else:
            call |= {"tool_name": "terminal"}
            arguments = {"command": action}
            directory = action.split()[1] if action.startswith("cd /") else directory
            observed |= {"exit_code": 0, "metadata": {"exit_code": 0, "working_dir": directory}}
        rows.append({**call, "action": arguments})
        rows.append({"kind": "ObservationEvent", "action_id": f"a{number}", "observation": observed})
    return rows


def atif(*steps: tuple[str, str]) -> Row:
    """An ATIF document; a step is a command, or the path of an edit, and its output."""
    rows: list[Row] = []
    for action, output in steps:
        edit = {"command": "str_replace", "path": action, "old_str": "1", "new_str": "2"}
        call = atif_call("editor", **edit) if action.startswith("/") else atif_call("bash", command=action)
        rows.append(atif_step([call], atif_results(("c", output))))
    return atif_document(*rows)


def mini(cwd: str, *steps: tuple[str, str]) -> Row:
    """A run with a new shell for each command, which starts in a directory that the recording states."""
    config = {"environment": {"cwd": cwd}}
    return mini_run(*((command, 0, output) for command, output in steps), info={"config": config})


def changed(trace: Trace) -> list[str]:
    return [change.path for event in trace.events for change in event.changes]


def fired(trace: Trace) -> list[tuple[str, int]]:
    """The detected points, by the number of their action."""
    return [(p.kind, p.event_index // 2) for p in list_handoff_points(trace) if p.kind != "requested"]


@pytest.mark.parametrize("directory", DIRECTORIES)
@pytest.mark.parametrize("form", ["sdk", "sdk-editor", "absolute", "cd", "editor", "pwd", "git", "mini"])
def test_edits_in_a_directory_of_any_depth_are_points(directory: str, form: str) -> None:
    file = f"{directory.rstrip('/')}/a.py"
    recordings = {
        "sdk": sdk_events([("cat a.py", ""), ("sed -i s/1/2/ a.py", ""), ("pytest -q", FAILED)], directory),
        "sdk-editor": sdk_events([("ls", ""), (file, "edited"), ("pytest -q", FAILED)], directory),
        "absolute": atif((f"cat {file}", ""), (f"sed -i s/1/2/ {file}", ""), ("pytest -q", FAILED)),
        "cd": atif((f"cd {directory} && ls", ""), (f"cd {directory}; sed -i s/1/2/ a.py", ""), ("pytest -q", FAILED)),
        "editor": atif(("ls", ""), (file, "The file has been edited."), ("pytest -q", FAILED)),
        "pwd": atif(("pwd", f"{directory}\n"), ("sed -i s/1/2/ a.py", ""), ("pytest -q", FAILED)),
        "git": atif(("git rev-parse --show-toplevel", directory), (f"sed -i s/1/2/ {file}", ""), ("pytest -q", FAILED)),
        "mini": mini(directory, ("ls", ""), ("sed -i s/1/2/ a.py", ""), ("pytest -q", FAILED)),
    }  # fmt: skip
    trace = parse_trace(recordings[form])
    assert (trace.workspace, changed(trace)) == (directory, ["a.py"])
    assert fired(trace) == [("first_source_edit", 1), ("first_validation", 2)]
    assert trace.workspace_why != ""
    assert describe_warnings(trace) == ()


@pytest.mark.parametrize(
    ("recording", "directory", "path"),
    [
        # The working directory contains the repository: by `cd`, by a clone, by absolute paths alone.
        (sdk_events([("cd /workspace/repo && ls", ""), ("sed -i s/1/2/ pkg/a.py", "")], "/workspace"),
         "/workspace/repo", "pkg/a.py"),
        (mini("/home/me", ("cd repos/egg && sed -i s/1/2/ pkg/a.py", ""), ("cd repos/egg && pytest -q", FAILED)),
         "/home/me/repos/egg", "pkg/a.py"),
        (mini("/srv", ("git clone https://example.org/t/shop.git", ""), ("sed -i s/1/2/ shop/pkg/a.py", "")),
         "/srv/shop", "pkg/a.py"),
        (sdk_events([("/workspace/project/shop/pkg/a.py", "ok"), ("pytest /workspace/project/shop", FAILED)],
         "/workspace/project"),
         "/workspace/project/shop", "pkg/a.py"),
        # It is the repository: commands work in it, it has the files of a top directory, or the task or Git names it.
        (sdk_events([("/workspace/pkg/a.py", "ok"), ("pytest -q", FAILED)], "/workspace"), "/workspace", "pkg/a.py"),
        (sdk_events([("ls", "pkg\nsetup.py"), ("cd /workspace/pkg && sed -i s/1/2/ a.py", "")], "/workspace"),
         "/workspace", "pkg/a.py"),
        (sdk_events([("/workspace/pkg/a.py", "ok")],
         "/workspace", "The repository is in /workspace: a repository in /workspace."),
         "/workspace", "pkg/a.py"),
        (mini("/workspace", ("git rev-parse --show-toplevel", "/workspace"), ("cd pkg && sed -i s/1/2/ a.py", "")),
         "/workspace", "pkg/a.py"),
        (mini("/testbed", ("cd /testbed/pkg && sed -i s/1/2/ a.py", ""), ("cd /testbed/pkg && pytest -q", FAILED)),
         "/testbed", "pkg/a.py"),
        (atif(("find / -name '*.py'", "/setup.py\n/pkg/a.py"), ("sed -i s/1/2/ /pkg/a.py", "")), "/", "pkg/a.py"),
        # Conflicts: most of the edits decide, without those of temporary files and installed packages.
        (mini("/root", ("cd /srv/git/shop && sed -i s/1/2/ pkg/a.py", "")), "/srv/git/shop", "pkg/a.py"),
        (mini("/testbed", *[(f"echo 'x = 1' > /tmp/t{n}.py", "") for n in range(3)], ("sed -i s/1/2/ pkg/a.py", "")),
         "/testbed", "pkg/a.py"),
        (mini("/testbed", *[(f"sed -i s/1/{n}/ /usr/lib/python3/dist-packages/b.py", "") for n in range(2, 5)],
              ("sed -i s/1/2/ pkg/a.py", "")), "/testbed", "pkg/a.py"),
        (mini("/testbed", *[(f"echo 'x = 1' > /srv/notes/t{n}.py", "") for n in range(3)], ("sed -i s/1/2/ pkg/a.py", "")),
         "/testbed", "pkg/a.py"),
        # A directory inside a container of unknown depth, and one that has the name of a source directory.
        (mini("/", ("cd /x/y/shop && sed -i s/1/2/ pkg/a.py", ""), ("cd /x/y/shop && pytest -q", FAILED)), "/x/y/shop", "pkg/a.py"),
        (mini("/", ("cd /src && sed -i s/1/2/ pkg/a.py", ""), ("cd /src && pytest -q", FAILED)), "/src", "pkg/a.py"),
        # A home that the recording does not name.
        (mini("/", ("cd ~/shop && sed -i s/1/2/ pkg/a.py", ""), ("cd ~/shop && pytest -q", FAILED)), "/root/shop", "pkg/a.py"),
        # Worktrees, clones and links, also in temporary directories.
        (mini("/repo", ("git worktree add -b fix /tmp/wt", ""), ("cd /tmp/wt && sed -i s/1/2/ pkg/a.py", "")),
         "/tmp/wt", "pkg/a.py"),
        (sdk_events([("git worktree add .trees/x", ""), ("/repo/.trees/x/pkg/a.py", "ok"), ("pytest -q", FAILED)], "/repo"),
         "/repo/.trees/x", "pkg/a.py"),
        (atif(("ln -s /data/shop /tmp/shop && cd /tmp/shop", ""), ("sed -i s/1/2/ /tmp/shop/pkg/a.py", "")),
         "/tmp/shop", "pkg/a.py"),
        (atif(("cat /app/pkg/a.py", "1"), ("cd /tmp && echo 'x = 1' > t.py && sed -i s/1/2/ t.py", ""),
              ("sed -i s/2/3/ /tmp/t.py", ""), ("sed -i s/1/2/ /app/pkg/a.py", "")), "/app", "pkg/a.py"),
        (atif(("git -C /shop status", ""),
              ("git -C /shop apply <<'X'\n--- a/pkg/a.py\n+++ b/pkg/a.py\n@@ -1 +1 @@\n-1\n+2\nX", "")),
         "/shop", "pkg/a.py"),
        # Windows, its shells and its Linux; macOS, where `/tmp` is a link.
        (sdk_events([("ls", ""), ("/c/code/shop/pkg/a.py", "ok"), ("pytest -q", FAILED)], "C:\\code\\shop"),
         "/c/code/shop", "pkg/a.py"),
        (atif(("/mnt/c/Users/me/shop/pkg/a.py", "ok"), ("pytest -q", FAILED)), "/mnt/c/Users/me/shop", "pkg/a.py"),
        (sdk_events([("ls", ""), ("/private/tmp/shop/pkg/a.py", "ok"), ("pytest -q", FAILED)], "/tmp/shop"),
         "/tmp/shop", "pkg/a.py"),
        (atif(("cd /app", ""), ("sed -i s/1/2/ //app//pkg/a.py", "")), "/app", "pkg/a.py"),
        # The directory of a subshell or a background command is not that of later commands.
        (atif(("cd /app", ""), ("(cd /tmp && ls)", "x"), ("sed -i s/1/2/ pkg/a.py", "")), "/app", "pkg/a.py"),
        (atif(("cd /app", ""), ("pushd /tmp/x && ls && popd", "x"), ("sed -i s/1/2/ pkg/a.py", "")), "/app", "pkg/a.py"),
        # A failed `cd` moves nothing.
        (atif(("cd /app && ls", ""), ("cd src", "bash: cd: src: No such file or directory"), ("sed -i s/1/2/ pkg/a.py", "")),
         "/app", "pkg/a.py"),
    ],
)  # fmt: skip
def test_the_repository_is_where_most_of_the_edits_are(recording: Any, directory: str, path: str) -> None:
    trace = parse_trace(recording)
    assert (trace.workspace, changed(trace)[-1]) == (directory, path)
    assert fired(trace)[0][0] == "first_source_edit"


def test_a_session_on_windows() -> None:
    """Claude Code writes paths of Windows; its shell names the same files in another way."""
    edit = {"file_path": "C:\\Users\\me\\shop\\tests\\test_a.py", "old_string": "1", "new_string": "2"}
    command = "cd /c/Users/me/shop && sed -i s/1/2/ pkg/a.py"
    steps = claude_steps([("Edit", edit, "ok"), ("Bash", {"command": command}, "ok")])
    trace = parse_trace(claude_rows(*steps, cwd="C:\\Users\\me\\shop"))
    assert (trace.workspace, changed(trace)) == ("/c/Users/me/shop", ["tests/test_a.py", "pkg/a.py"])
    assert fired(trace) == [("first_source_edit", 1)]


def test_a_conflict_is_explained() -> None:
    steps = [("cd /workspace/x__1.0", ""), ("/workspace/x__1.0/lib/a.py", "ok")]
    steps += [("cd /testbed", ""), ("/testbed/lib/a.py", "ok"), ("/testbed/lib/b.py", "ok")]
    trace = parse_trace(sdk_events(steps, "/workspace/x__1.0"))
    assert trace.workspace == "/testbed"
    assert trace.workspace_why == (
        "commands ran in it; most edits are not in /workspace/x__1.0, although the recording states it"
    )
    assert fired(trace) == [("first_source_edit", 3)]


def test_the_user_overrules_the_evidence() -> None:
    recording = mini("/testbed", ("sed -i s/1/2/ /tmp/x/pkg/a.py", ""), ("sed -i s/1/2/ b.py", ""))
    assert fired(parse_trace(recording)) == [("first_source_edit", 1)]
    trace = parse_trace(recording, workspace="/tmp/x/")
    assert (trace.workspace, changed(trace)) == ("/tmp/x", ["pkg/a.py", "/testbed/b.py"])
    assert fired(trace) == [("first_source_edit", 0)]


def test_an_unknown_directory_is_reported_if_edits_are_lost() -> None:
    trace = parse_trace(atif(("sed -i s/1/2/ /tmp/x/a.py", "")))
    assert (trace.workspace, fired(trace)) == ("", [])
    assert describe_warnings(trace) == (
        "1 edited code file (/tmp/x/a.py), but no directory of the repository found: not counted as edits (pass --workspace DIR)",
    )
    trace = parse_trace(mini("/testbed", ("cd /testbed", ""), ("sed -i s/1/2/ /etc/x/a.py", "")))
    assert describe_warnings(trace)[0].startswith("1 edited code file (/etc/x/a.py), not in /testbed: ")


def test_lost_edits_beside_others_are_reported() -> None:
    """As of an agent in a worktree that edits the main checkout; scratch files are no loss."""
    edits = [(f"/repo/.trees/x/pkg/{name}.py", "ok") for name in ("b", "c")]
    trace = parse_trace(sdk_events([("ls", ""), ("/repo/pkg/a.py", "ok"), *edits], "/repo/.trees/x"))
    assert fired(trace) == [("first_source_edit", 2)]
    assert describe_warnings(trace) == (
        "1 edited code file (/repo/pkg/a.py), not in /repo/.trees/x: not counted as edits (pass --workspace DIR)",
    )
    commands = ("echo 'x = 1' > /home/me/t.py", "sed -i s/1/2/ /home/me/t.py", "sed -i s/1/2/ /tmp/u.py")
    scratch = mini("/testbed", *((each, "") for each in commands), ("sed -i s/1/2/ pkg/a.py", ""))
    assert describe_warnings(parse_trace(scratch)) == ()


def test_relative_paths_are_inside_an_unknown_directory() -> None:
    trace = parse_trace(atif(("sed -i s/1/2/ pkg/a.py", ""), ("pytest -q", FAILED)))
    assert (trace.workspace, changed(trace), describe_warnings(trace)) == ("", ["pkg/a.py"], ())
    assert fired(trace) == [("first_source_edit", 0), ("first_validation", 1)]


def test_hostile_paths_are_bounded() -> None:
    """Many directories, long outputs and long paths; without bounds, this test would not end in time."""
    evidence = WorkspaceEvidence(task="<uploaded_files>" * 20_000)
    for number in range(2_000):
        evidence.add_call(
            "shell", {"command": f"cd /d{number} && ls && find /"}, "/x" * 20_000, f"/e{number}"
        )
        evidence.add_edit(f"/d{number}/{'y/' * 900}a.py", is_new=False)
    assert evidence.select().path
    evidence.add_call("editor", {"command": "view", "path": "/" * 4_000}, json.dumps("\0"))
    assert evidence.select("/given").path == "/given"
    assert WorkspaceEvidence().select() == Workspace()
