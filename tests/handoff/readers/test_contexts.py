"""Contexts that agents inject are not the user's words; images are named with type and size."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from langgraph_takeover.handoff.readers import parse_trace
from langgraph_takeover.handoff.recordings.sessions import separate_contexts
from langgraph_takeover.handoff.text.media import count_missing_images, describe_media

from ...random_examples import examples
from .session_rows import (
    claude_rows,
    codex_call,
    codex_meta,
    codex_request,
    codex_result,
    parse_rows,
    text_part,
)

PLUGINS = "<recommended_plugins>\n- github: <b>issues</b>\n</recommended_plugins>"
OPENED = "<ide_opened_file>The user opened the file /w/a.py in the IDE.</ide_opened_file>"
GUIDE = "# AGENTS.md instructions for /w\n\n<INSTRUCTIONS>\nBe <kind>.\n</INSTRUCTIONS>"
EDITOR = "# Context from my IDE setup:\n\n## Active file: a.py\n\n## Open tabs:\n- a.py\n\n## My request for Codex:\nFix it.\n"


def teammate(text: str) -> str:
    return f'<teammate-message teammate_id="lead" summary="Work">\n{text}\n</teammate-message>'


def codex(*texts: str | dict[str, Any]) -> str:
    return parse_rows(codex_meta("/w"), codex_request(*texts)).task


def claude(*texts: str | dict[str, Any]) -> str:
    parts = [text_part(each) if isinstance(each, str) else each for each in texts]
    return parse_trace(claude_rows(texts[0] if len(texts) == 1 and isinstance(texts[0], str) else parts)).task


@pytest.mark.parametrize(
    ("read", "texts", "task"),
    [
        (codex, [f"{PLUGINS}\n\n<environment_context><cwd>/w</cwd></environment_context>", "Fix it."], "Fix it."),
        (codex, [f"{PLUGINS}\nFix it."], "Fix it."),
        (codex, [f"{GUIDE}\n<environment_context>x</environment_context>", "Fix it."], "Fix it."),
        (codex, [EDITOR], "Fix it."),
        (codex, ["<permissions instructions>\nx\n</permissions instructions>", "Fix it."], "Fix it."),
        (codex, ["<codex_delegation>\nFix it.\n</codex_delegation>"], "Fix it."),
        (claude, [OPENED, "Fix it."], "Fix it."),
        (claude, [f"{OPENED}\nFix it."], "Fix it."),
        (claude, ["Fix it.", OPENED], "Fix it."),
        (claude, ["<ide_selection>The user selected the lines 1 to 2 from a.py:\nx = 1\n</ide_selection>\nFix it."], "Fix it."),
        (claude, [f"{teammate('I am done.')}\n\n{teammate('Me too.')}", "Fix it."], "Fix it."),
        # Without any request of the user, the agent works for another agent.
        (claude, [teammate("Fix it.")], "Fix it."),
        # What the user wrote stays, also where it is about these tags.
        (codex, ["<skills> in the README is wrong: close the tag."], "<skills> in the README is wrong: close the tag."),
        (codex, ["# AGENTS.md instructions are too long. Cut them."], "# AGENTS.md instructions are too long. Cut them."),
        (codex, [f"Why do I see\n{PLUGINS}\nin titles?"], f"Why do I see\n{PLUGINS}\nin titles?"),
        (codex, ["<div>x</div> is not centred."], "<div>x</div> is not centred."),
        (codex, ["# Context from my IDE setup: how do I write one?"], "# Context from my IDE setup: how do I write one?"),
        (claude, ["<bash-input> is not parsed."], "<bash-input> is not parsed."),
        (claude, [f"Strip this:\n```\n{OPENED}\n```"], f"Strip this:\n```\n{OPENED}\n```"),
        (claude, ["Hide `<system-reminder>x</system-reminder>`."], "Hide `<system-reminder>x</system-reminder>`."),
        (claude, [PLUGINS], PLUGINS),
    ],
)  # fmt: skip
def test_only_the_users_words_are_the_task(read: Any, texts: list[str], task: str) -> None:
    assert read(*texts) == task


TAGS = ["<skill>", "</skill>", "<tick a=1>", "</tick>", "x", "<", ">", "\n", "<teammate-message>"]


@given(st.lists(st.sampled_from(TAGS)).map("".join))
@settings(max_examples=examples(100))
def test_separation_only_cuts_the_start(text: str) -> None:
    for agent in ("codex", "claude-code", "opencode"):
        assert text.strip().endswith(separate_contexts(text, agent).own)


def png(width: int, height: int, size: int) -> str:
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    head = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))
    return base64.b64encode(head.ljust(size, b"\0")).decode()


PNG = png(640, 480, 41_000)
JPEG = base64.b64encode(b"\xff\xd8\xff\xe0\0\4ab\xff\xc0\0\x11\x08\x01\xe0\x02\x80\3" + b"\0" * 500).decode()
GIF = base64.b64encode(b"GIF89a\x80\x02\xe0\x01" + b"\0" * 90).decode()
WEBP = base64.b64encode(b"RIFF\0\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0\x7f\x02\0\xdf\x01\0").decode()


PNG_NAME, JPEG_NAME = "PNG, 640x480, 41 kB, 13363c70d965", "JPEG, 640x480, 518 bytes, e21b3e21e801"


@pytest.mark.parametrize(
    ("part", "described"),
    [
        ({"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"}, f"[image: {PNG_NAME}]"),
        ({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}, f"[image: {PNG_NAME}]"),
        ({"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{JPEG}"}}, f"[image: {JPEG_NAME}]"),
        ({"type": "image", "data": GIF, "mimeType": "image/gif"}, "[image: GIF, 640x480, 100 bytes, f2865fada70a]"),
        ({"type": "image", "base64": WEBP, "mime_type": "image/webp"}, "[image: WebP, 640x480, 30 bytes, a3f5e5988d56]"),
        ({"type": "file", "mime": "image/png", "url": f"data:image/png;base64,{PNG}"}, f"[image: {PNG_NAME}]"),
        ({"inlineData": {"mimeType": "image/png", "data": PNG}}, f"[image: {PNG_NAME}]"),
        ({"type": "image", "image_urls": ["https://x/a.png", f"data:image/png;base64,{PNG}"]},
         f"[image: https://x/a.png]\n[image: {PNG_NAME}]"),
        ({"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERg=="}},
         "[document: PDF, 4 bytes]"),
        ({"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "Notes."}}, "Notes."),
        ({"type": "image", "source": {"path": "images/1.png"}}, "[image: images/1.png]"),
        ({"type": "image"}, "[image]"),
        ({"type": "input_image", "image_url": "data:image/png;base64,!!!"}, "[image: PNG, 2 bytes]"),
        ({"type": "input_image", "image_url": "x" * 10_000 + "\x1b"}, f"[image: {'x' * 200}]"),
        ({"type": "image", "data": 7, "source": [], "image_url": {"url": None}}, "[image]"),
        ({"type": "text"}, None),
    ],
)  # fmt: skip
def test_media_are_named(part: dict[str, Any], described: str | None) -> None:
    assert describe_media(part) == described


@pytest.mark.parametrize("read", [codex, claude])
def test_images_of_a_request_are_named_in_the_task(read: Any) -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
    assert read(image, "Fix it.") == f"[image: {PNG_NAME}]\nFix it."
    assert count_missing_images(read(image, "Fix it.", image)) == 2
    named = codex('<image name=[Image #1] path="/tmp/a.png">', image, "</image>", "Fix it.")
    assert named == read(image, "Fix it.")


def test_an_image_in_a_result_is_named() -> None:
    image = {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"}
    trace = parse_rows(codex_meta(), codex_call("c", "view_image", path="a.png"), codex_result("c", [image]))
    assert [event.text for event in trace.events][1:] == [f"[image: {PNG_NAME}]"]
    assert trace.unknown_forms == {}
