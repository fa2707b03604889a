"""vLLM's environment is made once, by one maker at a time, and never half taken for whole."""

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from engine.errors import EnvironmentNotBuilt
from engine.file_lock import alone
from engine.models import checkpoints
from engine.models.checkpoints import checkpoint
from engine.vllm import environment as environments
from engine.vllm.environment import CHECKOUT, STAMP, Environment, build, device, environment
from engine.vllm.launch import command
from tests.waiting import until

UNFINISHED = CHECKOUT / "engine" / "vllm" / "unfinished.py"


@pytest.fixture
def stamped(tmp_path: Path) -> Environment:
    """What an environment that was made whole leaves to be seen, without the gigabytes."""
    made = environment(folder=tmp_path / "made", kind="cpu")
    made.vllm.parent.mkdir(parents=True)
    made.vllm.touch()
    (made.folder / STAMP).write_text(json.dumps(made._stamp()))
    return made


def test_a_whole_environment_is_made_no_second_time(stamped: Environment) -> None:
    told: list[str] = []
    assert build(stamped, progress=told.append) == stamped
    assert told == []


def test_a_moved_environment_is_not_ready(stamped: Environment, tmp_path: Path) -> None:
    assert stamped.is_ready()
    moved = stamped.folder.rename(tmp_path / "moved")
    assert not environment(folder=moved, kind="cpu").is_ready()


@pytest.mark.parametrize("missing", ["vllm", "stamp"])
def test_an_environment_that_was_cut_off_is_not_ready(stamped: Environment, missing: str) -> None:
    (stamped.vllm if missing == "vllm" else stamped.folder / STAMP).unlink()
    assert not stamped.is_ready()


def test_one_made_from_other_requirements_is_not_ready(stamped: Environment) -> None:
    stamp = json.loads((stamped.folder / STAMP).read_bytes())
    (stamped.folder / STAMP).write_text(json.dumps({**stamp, "requirements": "0" * 64}))
    assert not stamped.is_ready()


def test_too_little_room_is_said_before_anything_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(environments.SPACE, "cpu", 1 << 60)
    with pytest.raises(EnvironmentNotBuilt, match="make room"):
        build(environment(folder=tmp_path / "none", kind="cpu"), progress=print)
    assert not (tmp_path / "none").exists()


def test_what_pip_cannot_find_is_said_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(CHECKOUT)
    wanted = environment(folder=tmp_path / "env", kind="cpu")
    told: list[str] = []
    builder = environments._Builder(wanted, progress=told.append)
    builder._make_empty_environment()
    builder._repair()
    assert told == ["making an empty environment"]  # whole, although the checkout has packages of its own
    with pytest.raises(EnvironmentNotBuilt, match=r"no-such-folder.*build\.log"):
        builder._pip("nothing", "--no-index", "-r", str(tmp_path / "no-such-folder" / "list.txt"))
    assert (wanted.folder / "build.log").read_text()


def test_a_second_maker_waits_for_the_first_and_says_so(tmp_path: Path) -> None:
    target = tmp_path / "thing"
    told: list[str] = []
    order: list[str] = []

    def second() -> None:
        with alone(target, told.append):
            order.append("second")

    with alone(target, print):
        waiter = threading.Thread(target=second)
        waiter.start()
        until(lambda: told, "the second maker says that it waits")
        order.append("first")
    waiter.join(10)
    assert order == ["first", "second"]


def test_the_lock_of_a_killed_maker_is_free(tmp_path: Path) -> None:
    script = (
        "import sys, time\nfrom pathlib import Path\nfrom engine.file_lock import alone\n"
        "with alone(Path(sys.argv[1]), print):\n    print('held', flush=True)\n    time.sleep(60)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "thing")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        holder.kill()
        holder.wait()
    told: list[str] = []
    with alone(tmp_path / "thing", told.append):
        assert told == []


KILLED = """
import os, sys, threading
from pathlib import Path
from engine.models import checkpoints
from engine.vllm.environment import Environment, _Builder

class Sleepy(Environment):
    python = Path(sys.argv[2])

what, folder = sys.argv[1], Path(sys.argv[3])
where = Sleepy(folder=folder, device="cpu")
if what == "pip":
    work, words = _Builder(where, print)._pip, ("nothing",)
elif what == "trial":
    work, words = _Builder(where, print)._works, ()
else:
    work, words = checkpoints._make, ("tiny-llama", folder, folder / "made", where, "stamp")
threading.Thread(target=work, args=words, daemon=True).start()
sys.stdin.read()
os._exit(1)
"""


@pytest.mark.parametrize("what", ["pip", "trial", "checkpoint"])
def test_what_makes_it_dies_with_the_process_that_waits(tmp_path: Path, what: str) -> None:
    pid = tmp_path / "pid"
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho $$ > {pid}.new; mv {pid}.new {pid}\nexec sleep 60\n")
    python.chmod(0o755)
    command = [sys.executable, "-c", KILLED, what, str(python), str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as maker:
        until(pid.exists, "it is at work")
        maker.kill()
    running = Path("/proc", pid.read_text().strip(), "cmdline")
    until(lambda: not running.exists() or running.read_bytes() == b"", "it died too")  # empty: a zombie


def distribution(packages: Path, name: str, record: str) -> None:
    (packages / f"{name}.py").write_text("")
    info = packages / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "INSTALLER").write_text("pip")
    (info / "RECORD").write_text(record.format(info=info.name))


def test_packages_that_were_cut_off_are_found(tmp_path: Path) -> None:
    distribution(tmp_path, "entire", "entire.py,,\n{info}/INSTALLER,,\n")
    distribution(tmp_path, "partial", "partial.py,,\npartial_more.py,,\n{info}/INSTALLER,,\n")
    distribution(tmp_path, "unpacked", "unpacked.py,,\n{info}/METADATA,,\n")
    distribution(tmp_path, "recordless", "")
    (tmp_path / "recordless-1.0.dist-info" / "RECORD").unlink()
    script = f"import sys; sys.path.append({str(tmp_path)!r})\n{UNFINISHED.read_text()}"
    told = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script],
        capture_output=True,
        text=True,
        check=True,
    )
    assert sorted(told.stdout.split()) == ["partial==1.0", "recordless==1.0", "unpacked==1.0"]


def test_the_device_is_a_gpu_only_where_the_driver_lists_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert device() == "cpu"
    driver = tmp_path / "nvidia-smi"
    driver.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA H200 (UUID: GPU-0)'\n")
    driver.chmod(0o755)
    assert device() == "gpu"
    assert environment().folder.name == "vllm"
    driver.write_text("#!/bin/sh\necho 'no driver'; exit 9\n")
    assert device() == "cpu"
    assert environment().folder.name == "vllm-cpu"


def test_a_replica_on_a_cpu_is_one_thread_that_does_not_compile(tmp_path: Path) -> None:
    where = environment(folder=tmp_path, kind="cpu")
    words, variables = command(tmp_path / "model", "little", 8123, 16, where=where)
    assert words[:3] == [str(tmp_path / "bin" / "vllm"), "serve", str(tmp_path / "model")]
    assert words[words.index("--port") + 1] == "8123"
    assert words[words.index("--served-model-name") + 1] == "little"
    assert words[words.index("--max-num-seqs") + 1] == "16"
    assert "--enforce-eager" in words
    assert "--enable-prompt-tokens-details" in words
    assert variables["OMP_NUM_THREADS"] == "1"
    assert variables["HF_HUB_OFFLINE"] == "1"


def test_a_replica_on_a_gpu_is_left_its_own_ways(tmp_path: Path) -> None:
    where = environment(folder=tmp_path, kind="gpu")
    words, variables = command("org/model", "big", 8123, 128, context=32768, where=where)
    assert "--enforce-eager" not in words
    assert words[words.index("--max-model-len") + 1] == "32768"
    assert "OMP_NUM_THREADS" not in variables


def test_a_checkpoint_whose_making_fails_leaves_nothing_and_says_why(
    stamped: Environment, tmp_path: Path
) -> None:
    stamped.python.symlink_to(sys.executable)  # a Python without torch
    cache = tmp_path / "cache"
    with pytest.raises(EnvironmentNotBuilt, match="No module named 'torch'"):
        checkpoint("tiny-llama", where=stamped, progress=print, cache=cache)
    assert not (cache / "tiny-llama").exists()


def test_a_checkpoint_of_another_recipe_is_made_anew(stamped: Environment, tmp_path: Path) -> None:
    (tmp_path / "tiny-llama").mkdir()
    (tmp_path / "tiny-llama" / checkpoints.STAMP).write_text("of another recipe")
    stamped.python.symlink_to(sys.executable)
    with pytest.raises(EnvironmentNotBuilt):
        checkpoint("tiny-llama", where=stamped, progress=print, cache=tmp_path)
    assert not (tmp_path / "tiny-llama").exists()


@pytest.mark.vllm
def test_a_checkpoint_is_made_once(tmp_path: Path) -> None:
    where = build(environment(kind="cpu"), progress=print)
    told: list[str] = []
    first = checkpoint("tiny-llama", where=where, progress=told.append, cache=tmp_path)
    assert (first / "model.safetensors").stat().st_size > 1 << 20
    assert (first / "tokenizer.json").is_file()
    assert len(told) == 1
    assert checkpoint("tiny-llama", where=where, progress=told.append, cache=tmp_path) == first
    assert len(told) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tiny-llama", "tiny-llama.lock"]


@pytest.mark.vllm
def test_the_vllm_command_knows_its_version() -> None:
    where = build(environment(kind="cpu"), progress=print)
    told = subprocess.run(
        [str(where.python), "-c", "from importlib.metadata import version; print(version('vllm'))"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.strip() == "0.32.0+cpu"
