"""A uniform environment for test processes, independent of their parent."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import tempfile
import time

_DROPPED_PREFIXES = (
    *(
        "LANG",
        "LANGUAGE",
        "LC_",
        "OPENAI_",
        "LANGSMITH_",
        "LANGCHAIN_",
        "GIT_",
        "XDG_",
        "TAKEOVER_",
        "OTEL_",
        "TRACEPARENT",
    ),
    *("FORCE_COLOR", "NO_COLOR", "CLICOLOR", "PY_COLORS", "TTY_", "COLORTERM", "LINES", "TERMINAL_WIDTH"),
    *("SSL_CERT_FILE", "BASH_ENV", "ENV", "CDPATH", "PROMPT_COMMAND", "PYTHON"),
)
"""Prefixes of variables that affect output, input or child processes of programs."""
_FIXED_VARIABLES = {
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
    "TERM": "dumb",
    "COLUMNS": "80",
    "PYTHONUTF8": "1",
    "NO_PROXY": "127.0.0.1,localhost",
    "no_proxy": "127.0.0.1,localhost",
    "SSL_CERT_DIR": os.devnull,  # each client of a model would read all certificates, 40 ms
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
}
_ALLOWED_PREFIXES = (
    "PYTHONPATH",
    "PYTHONHOME",
    "TAKEOVER_TEST_",
    "TAKEOVER_CRASHES",
    "TAKEOVER_STABLE",
)
_HOME_VARIABLE = "TAKEOVER_TEST_HOME"
_RESET_SIGNALS = (signal.SIGTERM, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD)


def standardize_environment() -> None:
    """Set signals, umask, locale, time zone, home and terminal of this process and its children."""
    # Shells start background jobs with interrupts ignored. SIGHUP is unchanged, for `nohup`.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in _RESET_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.umask(0o022)
    for name in list(os.environ):
        if name.startswith(_DROPPED_PREFIXES) and not name.startswith(_ALLOWED_PREFIXES):
            del os.environ[name]
    os.environ |= _FIXED_VARIABLES
    time.tzset()
    # Workers of a session share a home directory: matplotlib takes seconds to build its font cache.
    if _HOME_VARIABLE not in os.environ:
        os.environ[_HOME_VARIABLE] = tempfile.mkdtemp(prefix="takeover-tests-home-")
        atexit.register(shutil.rmtree, os.environ[_HOME_VARIABLE], ignore_errors=True)
    os.environ["HOME"] = os.environ[_HOME_VARIABLE]
