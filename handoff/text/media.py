"""Images and files in messages, named instead of shown: `[image: PNG, 640x480, 41 kB, 3f2a91c4b1d0]`."""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

_KINDS = {
    "image": "image", "input_image": "image", "image_url": "image", "audio": "audio", "input_audio": "audio",
    "video": "video", "document": "document", "input_file": "file", "file": "file", "media": "file",
}  # fmt: skip
_HOLDERS = ("source", "image_url", "inlineData", "fileData", "file", "input_audio")
_TYPE_FIELDS = ("media_type", "mime_type", "mimeType", "mime")
_DATA_FIELDS = ("data", "base64", "file_data")
_ADDRESS_FIELDS = ("url", "image_url", "image_urls", "audio_url", "file_url", "fileUri", "path")
_DATA_URL = re.compile(r"data:([\w.+/-]{0,100})(?:;[\w=.-]{1,100}){0,5},")
_HEAD_CHARS = 4 * 16_384
"""Characters of Base64 that are searched for the size of an image."""
_MAX_ADDRESS_CHARS = 200
_ENDINGS = {"PNG": "png", "JPEG": "jpg", "GIF": "gif", "WebP": "webp"}
_NAME = re.compile(r"\[image: [^\[\]]{0,100}?, ([0-9a-f]{12})\]")
_MAX_IMAGES, _MAX_IMAGE_CHARS, _MAX_IMAGES_CHARS = 200, 30_000_000, 300_000_000
_FILE = re.compile(r": [^\]:]{1,200}/[0-9a-f]{12}\.[a-z]{3,4}\]$")
_MAX_DEPTH = 40


def describe_media(part: Mapping[str, Any]) -> str | None:
    """Name the image or file of a message's part in one line; None for other parts."""
    kind = _KINDS.get(str(part.get("type"))) or ("file" if {"inlineData", "fileData"} & part.keys() else None)
    if kind is None:
        return None
    if isinstance(each := part.get("source"), Mapping) and each.get("type") == "text":
        return str(each.get("data") or "")
    described = [_describe(kind, *found) for found in _list_contents(part)]
    return "\n".join(described) or f"[{kind}]"


def count_missing_images(text: str) -> int:
    """The number of images that a text names as `describe_media` does, without a file."""
    lines = [line for line in text.splitlines() if line.startswith("[image: ") and line.endswith("]")]
    return sum(_FILE.search(line) is None for line in lines)


def read_images(path: Path, texts: Iterable[str], directory: str) -> tuple[dict[str, bytes], dict[str, str]]:
    """Read the images that `texts` name from the session's file, of JSON or of a JSON value per line.

    Returns their contents by file name, and what to replace in the texts so that they name a file in `directory`. Images are
    PNG, JPEG, GIF and WebP, at most 200 of together 300 MB in Base64; the others stay without a file.
    """
    wanted = {found for text in texts for found in _NAME.findall(text)}
    files: dict[str, bytes] = {}
    replaced: dict[str, str] = {}
    left = _MAX_IMAGES_CHARS
    for data in _list_data(path) if wanted else ():
        digest = _digest(data)
        if digest not in wanted or len(files) == _MAX_IMAGES or len(data) > min(left, _MAX_IMAGE_CHARS):
            continue
        wanted.remove(digest)
        ending = _ENDINGS.get(_measure_image(_decode_head(data))[0])
        with contextlib.suppress(binascii.Error, ValueError):
            content = base64.b64decode(data)
            if ending:
                files[f"{digest}.{ending}"] = content
                replaced[f", {digest}]"] = f": {directory}/{digest}.{ending}]"
                left -= len(data)
    return files, replaced


def _list_data(path: Path) -> Iterator[str]:
    """Yield the Base64 data of the images of a session's file."""
    with path.open("rb") as source:
        head = source.read(1)
        source.seek(0)
        lines = [source.read()] if head == b"[" or path.suffix == ".json" else source
        for line in lines:
            with contextlib.suppress(ValueError, RecursionError):
                yield from _find_data(json.loads(line))


def _find_data(value: Any, depth: int = 0) -> Iterator[str]:
    if depth > _MAX_DEPTH:
        return
    if isinstance(value, Mapping):
        yield from (data for _, data, _ in _list_contents(value) if data)
    if isinstance(value, Mapping | list):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _find_data(each, depth + 1)


def _digest(data: str) -> str:
    return hashlib.sha256(data.encode(errors="surrogatepass")).hexdigest()[:12]


def _list_contents(part: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield media type, Base64 data and address of each content; an unknown value is empty."""
    holders = [part, *(part[name] for name in _HOLDERS if isinstance(part.get(name), Mapping))]
    for holder in holders:
        media_type = next((str(holder[name]) for name in _TYPE_FIELDS if holder.get(name)), "")
        for name in (*_DATA_FIELDS, *_ADDRESS_FIELDS):
            values = holder.get(name)
            for value in values if isinstance(values, list) else [values]:
                if not isinstance(value, str) or not value:
                    continue
                if found := _DATA_URL.match(value):
                    yield found[1] or media_type, value[found.end() :], ""
                else:
                    yield (media_type, value, "") if name in _DATA_FIELDS else (media_type, "", value)


def _describe(kind: str, media_type: str, data: str, address: str) -> str:
    top, _, name = media_type.partition("/")
    kind = top if kind == "file" and top in ("image", "audio", "video") else kind
    if not data:
        return f"[{kind}: {' '.join(address.split())[:_MAX_ADDRESS_CHARS]}]"
    head = _decode_head(data)
    found, size = _measure_image(head)
    parts = (
        found or name.partition("+")[0].upper()[:20],
        size,
        _format_bytes(len(data) * 3 // 4 - data[-2:].count("=")),
        _digest(data) if found else "",
    )
    return f"[{kind}: {', '.join(filter(None, parts))}]"


def _decode_head(data: str) -> bytes:
    try:
        return base64.b64decode(data[:_HEAD_CHARS][: len(data) // 4 * 4])
    except (binascii.Error, ValueError):
        return b""


def _measure_image(head: bytes) -> tuple[str, str]:
    """The format of an image, and its width and height; empty if unknown."""

    def read(start: int, size: int = 2, order: Any = "little") -> int:
        return int.from_bytes(head[start : start + size], order)

    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return "PNG", f"{read(16, 4, 'big')}x{read(20, 4, 'big')}"
    if head.startswith((b"GIF87a", b"GIF89a")):
        return "GIF", f"{read(6)}x{read(8)}"
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        sizes = {
            b"VP8X": (read(24, 3) + 1, read(27, 3) + 1),
            b"VP8L": ((read(21, 4) & 0x3FFF) + 1, (read(21, 4) >> 14 & 0x3FFF) + 1),
            b"VP8 ": (read(26) & 0x3FFF, read(28) & 0x3FFF),
        }
        return "WebP", "x".join(map(str, sizes.get(head[12:16], ())))
    return ("JPEG", _measure_jpeg(head)) if head.startswith(b"\xff\xd8") else ("", "")


def _measure_jpeg(head: bytes) -> str:
    position = 2
    while position + 9 <= len(head) and head[position] == 0xFF:
        marker, length = head[position + 1], int.from_bytes(head[position + 2 : position + 4], "big")
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = (int.from_bytes(head[position + n : position + n + 2], "big") for n in (5, 7))
            return f"{width}x{height}"
        position += 2 + max(length, 2)
    return ""


def _format_bytes(count: int) -> str:
    for unit, size in (("MB", 1_000_000), ("kB", 1000)):
        if count >= size:
            return f"{count / size:.0f} {unit}"
    return f"{count} bytes"
