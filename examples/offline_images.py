"""Docker images without an image registry: a base made from this host, and tasks on top of it.

A base is a tar of selected files of this host: shell, core tools, git, the running Python and the libraries
they need. A task of the bundled suite brings its Dockerfile. A SWE-bench Verified instance is made from its
project's source distribution or, with --git, from a git directory that holds its base commit.

Examples:
  python examples/offline_images.py base --force
  python examples/offline_images.py suite evals/tasks/suite/tasks
  python examples/offline_images.py instance sympy__sympy-23534 --tasks swebench_verified_v5.parquet
  python examples/offline_images.py instance sympy__sympy-23824 --tasks FILE --git ~/src/sympy/.git
"""

from __future__ import annotations

import argparse
import io
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from pathlib import Path
from typing import IO, Any

import docker
import docker.errors
import yaml

Row = dict[str, Any]
BASE = "takeover/base:latest"
VERSION = f"python{sys.version_info[0]}.{sys.version_info[1]}"
SITE = f"/usr/local/lib/{VERSION}/site-packages"
TOOLS = """
bash dash sh env ls cat cp mv rm ln mkdir rmdir mktemp touch chmod chown chgrp install stat readlink realpath
basename dirname pwd echo printf true false test [ expr seq sleep timeout date du df dd tee head tail wc nl
od cut paste join comm sort uniq tr tac rev shuf split numfmt base32 base64 cksum md5sum sha1sum sha256sum
sha512sum truncate yes nproc nice nohup stdbuf id whoami uname hostname arch printenv shred find xargs grep
egrep fgrep sed awk gawk mawk diff diff3 cmp patch tar gzip gunzip zcat bzip2 xz getopt column hexdump flock
setsid logger more less kill mount umount script which ps pgrep pkill pidof top free uptime make perl git ldd
"""
C_LIBRARY = (
    "libdl.so.2",
    "libm.so.6",
    "libpthread.so.0",
    "librt.so.1",
    "libutil.so.1",
    "libgcc_s.so.1",
    "libstdc++.so.6",
)
TEMPLATES, LOCALE = Path("/usr/share/git-core/templates"), Path("/usr/lib/locale/C.utf8")
EXCLUDED_FOLDERS = {"test", "idlelib", "tkinter", "turtledemo", "lib2to3", "site-packages", "dist-packages"}
EXCLUDED_FILES = re.compile(
    r"\.opt-\d\.pyc$|\.a$|^_(tkinter|test)|^git-(daemon|http-|remote-|imap-send)|^scalar$"
)
PACKAGING = re.compile(r"(pip|setuptools)(-.*-info)?$|pkg_resources$|_distutils_hack$|distutils-precedence")
ETC = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
    "usr/local/bin/pip": '#!/bin/sh\nexec python -m pip "$@"\n',
}
SETTINGS = """
WORKDIR /testbed
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
ENV PYTHONDONTWRITEBYTECODE=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_RETRIES=0 PIP_ROOT_USER_ACTION=ignore
STOPSIGNAL SIGKILL
CMD ["bash"]
"""
LOG_LINES = 20
PIP = (sys.executable, "-m", "pip")
SDIST = "sympy==1.10.1"
DOCKERIGNORE = "*.tar.gz\nsite/bin\nsite/setuptools*\nsite/pkg_resources\nsite/*distutils*\n"  # in the base
BUILD_PACKAGES = ("setuptools==75.8.0", "wheel==0.45.1", "mpmath==1.3.0")
# The real instances that this sdist serves, each with (file, old, new) for the lines of its base commit that
# the sdist lacks: without them the line numbers in a recorded run are off.
RECIPES: Row = {f"sympy__sympy-{n}": [] for n in (22914, 23262, 23413, 23950, 24443, 24661)}
RECIPES["sympy__sympy-23534"] = [
    ("sympy/core/symbol.py", old, new)
    for old, new in (
        ("from .assumptions", "from __future__ import annotations\n\nfrom .assumptions"),
        ("import product\n", "import product\nfrom typing import Any\n\n"),
        ("    def __new_stage2__", "\n    def __new_stage2__"),
        (
            "\ndef symbols(names, *, cls=Symbol, **args)",
            "\n\ndef symbols(names, *, cls=Symbol, **args) -> Any",
        ),
        ("split = _range.split(name)", "split: list[Any]\n            split = _range.split(name)"),
    )
]
RECIPES["sympy__sympy-23824"] = [
    (
        "sympy/physics/hep/gamma_matrices.py",
        "links = dict()\n    for i in range(first_dum_pos, total_number):\n        links[i] = []\n",
        "links = {i: [] for i in range(first_dum_pos, total_number)}\n",
    )
]
SYMPY_TEST = """\
#!/usr/bin/env python
import argparse, os, sys
parser = argparse.ArgumentParser(description="Run SymPy's tests.", argument_default=argparse.SUPPRESS)
parser.add_argument("-C", "--no-cache", action="store_true", help="disable the cache")
parser.add_argument("-k", dest="kw", nargs="*", help="only run tests whose names match")
parser.add_argument("-v", "--verbose", action="store_true")
parser.add_argument("paths", nargs="*", default=[])
options = vars(parser.parse_args())
if options.pop("no_cache", False):
    os.environ["SYMPY_USE_CACHE"] = "no"
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import sympy
sys.exit(0 if sympy.test(*options.pop("paths"), **options) else 1)
"""
DOCKERFILE = f"""\
ARG BASE
FROM $BASE
ENV PYTHONPYCACHEPREFIX=/opt/pycache PATH=/opt/miniconda3/envs/testbed/bin:$PATH
COPY site {SITE}
COPY activate /opt/miniconda3/bin/activate
COPY testbed /testbed
RUN mkdir /opt/miniconda3/envs && ln -s /usr/local /opt/miniconda3/envs/testbed && git status --short \\
    && (python -m pip install -q --no-index --no-deps --no-build-isolation -e . \\
        || echo /testbed > {SITE}/testbed.pth) \\
    && : compile into that folder, with the test runner where this commit has it && export PYTHONDONTWRITEBYTECODE= \
    && python -c 'import sympy' && for runner in sympy.testing.runtests sympy.utilities.runtests; do \
        python -c "import $runner" 2>/dev/null && break; done; python -c 'import sympy'
"""


class ImageTree:
    """A tar of files of this host under their own paths, with the links that lead to them."""

    def __init__(self, file: IO[bytes]) -> None:
        self.tar = tarfile.TarFile(fileobj=file, mode="w", format=tarfile.GNU_FORMAT)
        self.names: set[str] = set()
        self.programs: list[Path] = []
        for path in (Path("/", name) for name in ("bin", "sbin", "lib", "lib64")):
            if path.is_symlink():
                self.add_entry(path.name, link=str(path.readlink()))

    def add_entry(self, name: str, text: str | None = None, link: str = "", mode: int = 0o755) -> None:
        """Add a directory, a link or a small text file that this host may lack."""
        if name in self.names or name == ".":
            return
        self.add_entry(str(Path(name).parent))
        self.names.add(name)
        info, data = tarfile.TarInfo(name), (text or "").encode()
        info.mode, info.linkname, info.size = mode, link, len(data)
        info.type = tarfile.SYMTYPE if link else tarfile.DIRTYPE if text is None else tarfile.REGTYPE
        self.tar.addfile(info, io.BytesIO(data))

    def add_file(self, path: Path, name: str = "") -> None:
        """Add one file or link of this host, and the target of a link."""
        path = path.parent.resolve() / path.name
        name = name or str(path)[1:]
        if name in self.names or not os.path.lexists(path):
            return
        self.add_entry(str(Path(name).parent))
        self.names.add(name)
        info = self.tar.gettarinfo(path, name)
        info.uid, info.gid, info.uname, info.gname = 0, 0, "root", "root"
        data = path.read_bytes() if info.isreg() else b""
        self.tar.addfile(info, io.BytesIO(data))
        if data.startswith(b"\x7fELF"):
            self.programs.append(path)
        if info.issym() and str(path) == f"/{name}":
            self.add_file(path.parent / path.readlink())

    def add_folder(self, path: Path, name: str = "") -> None:
        for top, folders, files in os.walk(path):
            folders[:] = sorted(
                f for f in folders if f not in EXCLUDED_FOLDERS and not f.startswith("config-")
            )
            for file in sorted(f for f in files if not EXCLUDED_FILES.search(f)):
                self.add_file(
                    Path(top, file), str(Path(name, Path(top, file).relative_to(path))) if name else ""
                )

    def add_libraries(self) -> None:
        """Add the C library, and every library that the programs and modules added so far link to."""
        ldd = subprocess.run(["ldd", *map(str, self.programs)], capture_output=True, text=True, check=False)
        paths = {Path(p) for p in re.findall(r"(?:=> |^\s+)(/\S+) \(0x", ldd.stdout, re.MULTILINE)}
        usual = next(p for p in paths if p.name.startswith("libc.so")).parent.resolve()
        for path in sorted(paths):
            if str(path.resolve()).startswith(("/usr/lib", "/lib")):
                self.add_file(path)
            else:  # a library of an interpreter outside the default paths: put it where the loader always looks
                self.add_file(path.resolve(), str(usual / path.name)[1:])
        # Every usual image has them, and programs of external agents link to them.
        for name in C_LIBRARY:
            if (usual / name).exists() and usual / name not in paths:
                self.add_file(usual / name)


def build_base(tag: str = BASE, force: bool = False) -> str:
    """Build a small image of this host's shell, tools, git and Python, unless the tag exists."""
    daemon = docker.from_env(timeout=600)
    if daemon.images.list(name=tag) and not force:
        return tag
    git, stdlib = Path(subprocess.getoutput("git --exec-path")), Path(sysconfig.get_path("stdlib"))
    with tempfile.TemporaryFile() as file:
        tree = ImageTree(file)
        for tool in TOOLS.split():
            if found := shutil.which(tool, path="/usr/bin:/bin:/usr/sbin:/sbin"):
                tree.add_file(Path(found))
        tree.add_entry(f"{git}/git"[1:], link="/usr/bin/git")
        for folder in (git, TEMPLATES, LOCALE, *Path("/usr/lib").glob("*/perl-base")):
            tree.add_folder(folder)
        tree.add_file(Path(sys.executable).resolve(), f"usr/local/bin/{VERSION}")
        for name in ("python3", "python"):
            tree.add_entry(f"usr/local/bin/{name}", link=VERSION)
        tree.add_folder(stdlib, f"usr/local/lib/{VERSION}")
        directories = [sysconfig.get_path("purelib", vars={"base": sys.base_prefix}), *sys.path]
        packages = next((Path(p) for p in directories if Path(p, "pip").is_dir()), stdlib)
        for part in sorted(p for p in packages.iterdir() if PACKAGING.match(p.name)):
            put = tree.add_folder if part.is_dir() else tree.add_file
            put(part, f"{SITE[1:]}/{part.name}")
        tree.add_libraries()
        for name, text in ETC.items():
            tree.add_entry(name, text, mode=0o755 if "/bin/" in name else 0o644)
        for name, mode in {"tmp": 0o1777, "var/tmp": 0o1777, "root": 0o700, "testbed": 0o755}.items():
            tree.add_entry(name, mode=mode)
        tree.tar.close()
        file.seek(0)
        files = f"{tag.partition(':')[0]}-files-{os.getpid()}"  # another process may build the same base
        daemon.api.import_image_from_data(file, repository=files, tag="latest")
    dockerfile = io.BytesIO(f"FROM {files}:latest{SETTINGS}".encode())  # an import takes no STOPSIGNAL
    daemon.images.build(fileobj=dockerfile, tag=tag, rm=True)
    daemon.images.remove(f"{files}:latest", noprune=True)
    return tag


def build_folder(path: str, tag: str, base: str, nocache: bool = False) -> None:
    how: Row = {"tag": tag, "buildargs": {"BASE": base}, "network_mode": "none", "nocache": nocache}
    try:
        docker.from_env(timeout=600).images.build(path=path, rm=True, forcerm=True, **how)
    except docker.errors.BuildError as error:
        output = "".join(part.get("stream", "") for part in error.build_log)
        # The daemon's own message repeats the whole command, and leaves out what it printed.
        last = [
            line for line in output.splitlines() if line.strip() and not line.startswith((" --->", "Remov"))
        ]
        raise ValueError(
            "\n".join([f"{tag} was not built; the last lines of the build:", *last[-LOG_LINES:]])
        ) from error


def build_suite(tasks_dir: Path, base: str = BASE, force: bool = False) -> list[str]:
    """Build one image for each task directory that has a Dockerfile, named as in its task.yaml."""
    names = []
    for folder in sorted(path.parent for path in tasks_dir.glob("*/Dockerfile")):
        names.append(yaml.safe_load((folder / "task.yaml").read_text(encoding="utf-8"))["image"])
        build_folder(str(folder), names[-1], base, nocache=force)
    return names


def run_command(*command: str | Path, **environment: str) -> None:
    fixed = {"NAME": "SymPy", "EMAIL": "sympy@localhost", "DATE": "2022-03-20T00:00:00Z"}
    own = {f"GIT_{role}_{what}": fixed[what] for role in ("AUTHOR", "COMMITTER") for what in fixed}
    own |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", **environment}
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, **own})


def unpack_sdist(key: str, tree: Path, site: Path) -> None:
    """The sdist as a git repository of one commit, whose id is the same on every host."""
    how = ("--no-deps", "--no-binary=sympy", "--no-build-isolation")  # its setup.py runs, and needs mpmath
    run_command(*PIP, "download", "-qq", *how, "-d", tree.parent, SDIST, PYTHONPATH=str(site))
    run_command("tar", "-xzf", next(tree.parent.glob("*.tar.gz")), "-C", tree, "--strip-components=1")
    for name, old, new in RECIPES[key]:
        text = (tree / name).read_text(encoding="utf-8")
        if text.count(old) != 1:
            raise ValueError(f"{name} of {SDIST} is not as expected: {old!r}")
        (tree / name).write_text(text.replace(old, new), encoding="utf-8")
    (tree / ".gitignore").write_text("*.pyc\n__pycache__/\n*.egg-info/\n", encoding="utf-8")
    (tree / ".gitattributes").write_text("*.py diff=python\n", encoding="utf-8")
    (tree / "bin/test").write_text(SYMPY_TEST, encoding="utf-8")
    (tree / "bin/test").chmod(0o755)
    run_command("git", "-C", tree, "add", "-A")
    run_command("git", "-C", tree, "commit", "-qm", f"{SDIST} for {key}")


def build_instance(instance: Row, base: str = BASE, git: Path | None = None, force: bool = False) -> str:
    """Build the image of one real instance under the harness's name; with `git`, from exactly its base commit."""
    name, key = str(instance["image"]), str(instance["instance_id"])
    if docker.from_env().images.list(name=name) and not force:
        return name
    if key not in RECIPES and not (git and instance["repo"] == "sympy/sympy"):
        raise ValueError(f"no recipe for {key}; there are: {', '.join(RECIPES)}")
    with tempfile.TemporaryDirectory() as temp:
        tree, site = Path(temp, "testbed"), Path(temp, "site")
        run_command(*PIP, "install", "-qq", "--no-deps", "--target", site, *BUILD_PACKAGES)
        run_command("git", "init", "-q", "--template=", "-b", "master", tree)
        run_command("git", "-C", tree, "config", "core.abbrev", "10")  # as for a repository of SymPy's size
        if git:
            source = git.expanduser().resolve().as_uri()
            run_command("git", "-C", tree, "fetch", "-q", "--depth=1", source, instance["base_commit"])
            run_command("git", "-C", tree, "reset", "-q", "--hard", "FETCH_HEAD")
        else:
            unpack_sdist(key, tree, site)
        Path(temp, ".dockerignore").write_text(DOCKERIGNORE, encoding="utf-8")
        Path(temp, "activate").write_text("conda() { :; }\n", encoding="utf-8")
        Path(temp, "Dockerfile").write_text(DOCKERFILE, encoding="utf-8")
        build_folder(temp, name, base)
    return name


def read_instance(tasks: Path, key: str) -> Row:
    import pyarrow.parquet  # type: ignore[import-untyped, unused-ignore]

    rows: list[Row] = pyarrow.parquet.read_table(tasks, filters=[("instance_id", "==", key)]).to_pylist()
    if not rows:
        raise ValueError(f"{tasks} has no instance {key}")
    return rows[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    base, suite, instance = (commands.add_parser(name) for name in ("base", "suite", "instance"))
    suite.add_argument("tasks", type=Path, nargs="?", default=Path("evals/tasks/suite/tasks"))
    instance.add_argument("id", help="instance id, such as sympy__sympy-23534")
    instance.add_argument("--tasks", type=Path, required=True, help="SWE-bench rows, a parquet file")
    instance.add_argument("--git", type=Path, help="a git directory that holds the instance's base commit")
    for command in (base, suite, instance):
        command.add_argument("--tag" if command is base else "--base", dest="base", default=BASE)
        command.add_argument("--force", action="store_true", help="rebuild existing images")
    options = parser.parse_args()
    try:
        names = [build_base(options.base, options.force and options.command == "base")]
        if options.command == "suite":
            names = build_suite(options.tasks, options.base, options.force)
        elif options.command == "instance":
            row = read_instance(options.tasks, options.id)
            names = [build_instance(row, options.base, options.git, options.force)]
        print(*names, sep="\n")
    except (docker.errors.DockerException, subprocess.CalledProcessError, OSError, ValueError) as error:
        sys.exit(f"offline_images: {error}")


if __name__ == "__main__":
    main()
