"""The sandbox: bubblewrap's command line, and whether it works here.

Inside there is Python's executable, its standard library, the shared libraries that these load, three device files, this
folder and an empty /tmp: read-only but for /tmp. No network, no /proc, no environment; processes, users, IPC and host name of
its own.

Started by root, bubblewrap makes its namespaces as root and the process inside gives root up for a user that nobody is
(`limits.enter`), since no limit on processes binds root. Started by anyone else, it does so in a user namespace of its own,
which some systems forbid; `refusal` says what to do there.
"""

from __future__ import annotations

import compileall
import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

from grpo_exp.sandbox import limits, system_calls

TMP = "/tmp"
HERE = Path(__file__).resolve().parent
ROOT = "/inside"  # where this package's folder is seen
_LAUNCH = "import sys; sys.path.insert(0, sys.argv[1]); from grpo_exp.sandbox.{} import main; main(sys.argv[2])"
_NOT_LOADED = ("_tkinter", "readline", "nis")  # they bring half a desktop along
_AS_ROOT = (
    "root may not make namespaces here, as in most containers; start the container with --security-opt seccomp=unconfined "
    "--cap-add SYS_ADMIN, or run as another user where user namespaces are allowed"
)
_AS_USER = (
    "this user may not make namespaces. Where sysctl kernel.apparmor_restrict_unprivileged_userns is 1 (Ubuntu 24.04), set it "
    "to 0 or give bwrap an AppArmor profile; where user.max_user_namespaces or kernel.unprivileged_userns_clone is 0, raise "
    "it; start a container with --security-opt seccomp=unconfined"
)
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")


def command(disk: int) -> list[str]:
    """The command line up to what is run, `disk` bytes in /tmp."""
    words = [_bwrap() or "bwrap", "--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"]
    words += [
        "--unshare-ipc",
        "--unshare-pid",
        "--unshare-net",
        "--unshare-uts",
        "--unshare-cgroup-try",
        "--hostname",
        "sandbox",
    ]
    if os.geteuid() == 0:
        words += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        words += ["--unshare-user", "--uid", "65534", "--gid", "65534", "--disable-userns"]
    folders, files, links = _python()
    for folder in _above([*folders, *files, *_DEVICES, f"{ROOT}/grpo_exp/sandbox"]):
        words += ["--perms", "0755", "--dir", folder]  # made by bubblewrap itself, only root could enter them
    for folder in folders:
        words += ["--ro-bind", folder, folder]
        if (Path(folder) / "site-packages").is_dir():
            words += ["--tmpfs", f"{folder}/site-packages", "--remount-ro", f"{folder}/site-packages"]
    for at, file in files.items():
        words += ["--ro-bind", file, at]
    for at, target in links.items():
        words += ["--symlink", target, at]
    libraries = sorted({str(Path(at).parent) for at in files if ".so" in at})
    words += ["--ro-bind", str(HERE), f"{ROOT}/grpo_exp/sandbox", "--ro-bind", str(HERE.parent / "__init__.py")]
    words += [f"{ROOT}/grpo_exp/__init__.py", "--setenv", "LD_LIBRARY_PATH", ":".join(libraries)]
    for device in _DEVICES:
        words += ["--dev-bind", device, device]
    return [*words, "--perms", "1777", "--size", str(disk), "--tmpfs", TMP, "--remount-ro", "/", "--chdir", TMP]


def python(main: str, root: str = ROOT) -> list[str]:
    """Python as it is started inside, running `main` of a module of this folder; its argument follows."""
    return [_executable(), "-I", "-S", "-B", "-X", "utf8", "-c", _LAUNCH.format(main), root]


def refusal() -> str | None:
    """Why there is no sandbox here and how to get one; None where it works, which is tried."""
    if _bwrap() is None:
        return "bubblewrap is not installed; apt-get install bubblewrap (dnf, pacman and apk have it under that name)"
    if system_calls.program() is None:
        return "the filter of system calls is written for x86_64 and aarch64 alone"
    return _failure(os.geteuid())


@cache
def _failure(euid: int) -> str | None:
    from grpo_exp.sandbox.trial import started

    job = {"prefix": command(1 << 20), "limits": limits.of(5, 1 << 29, 1 << 20, 8)}
    try:
        process = started(job, "candidate", {"program": "print(6 * 7)", "calls": None}, number=0, stderr=subprocess.PIPE)
        said = process.communicate(timeout=20)
    except (OSError, subprocess.SubprocessError) as error:
        return f"bubblewrap does not run: {error}"
    if process.returncode == 0 and said[0] == b"42\n":
        return None
    words = " ".join(said[1].decode(errors="replace").split())[-300:]
    if "bwrap:" not in words:
        return f"Python does not run in bubblewrap: {words or f'status {process.returncode}'}"
    return f"bubblewrap is installed and fails ({words}): {_AS_ROOT if euid == 0 else _AS_USER}"


def _above(paths: list[str]) -> list[str]:
    """All folders that the paths are in, each before what it holds."""
    return sorted({str(folder) for path in paths for folder in Path(path).parents} - {"/"})


def _bwrap() -> str | None:
    return shutil.which("bwrap")


def _executable() -> str:
    """Python's own, not the link of a virtual environment, which would look for its folder."""
    return os.path.realpath(sys.executable)


@cache
def _python() -> tuple[list[str], dict[str, str], dict[str, str]]:
    """What Python needs: folders, files (where it is looked for -> where it is), and links at the top of the file system."""
    script = f"""
import importlib, json, os, sys, sysconfig
folder = sysconfig.get_config_var("DESTSHARED") or ""
for file in os.listdir(folder) if os.path.isdir(folder) else []:
    if (name := file.partition(".")[0]) not in {_NOT_LOADED!r}:
        try:
            importlib.import_module(name)
        except Exception:
            pass
fields = [line.split(None, 5) for line in open("/proc/self/maps")]
mapped = sorted({{f[5].strip() for f in fields if len(f) == 6 and ".so" in f[5] and os.path.isfile(f[5].strip())}})
print(json.dumps([mapped, [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), folder]]))
"""
    done = subprocess.run([_executable(), "-I", "-S", "-B", "-c", script], capture_output=True, timeout=60, check=True)
    mapped, folders = json.loads(done.stdout)
    if not sys.dont_write_bytecode:
        compileall.compile_dir(HERE, quiet=2)  # inside, where nothing can be written, it would be done each time
    folders = [f for f in dict.fromkeys(folders) if f and os.path.isdir(f)]
    folders = [f for f in folders if not any(f != g and f.startswith(f"{g}/") for g in folders)]
    outside = {file for file in mapped if not any(file.startswith(f"{folder}/") for folder in folders)}
    links = {at: os.readlink(at) for at in ("/lib", "/lib64", "/bin") if os.path.islink(at)}
    files = {_executable(): _executable()}
    for place in sorted({os.path.dirname(file) for file in outside} | {"/usr/lib64", "/lib64", "/lib"}):
        if place in links or not os.path.isdir(place):
            continue
        for name in os.listdir(place):  # a library is asked for by a name that is a link to it
            if ".so" in name and (real := os.path.realpath(f"{place}/{name}")) in outside:
                files[f"{place}/{name}"] = real
    return folders, files, links
