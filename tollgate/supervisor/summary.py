"""What `tollgate up` prints when all is up: addresses, the key, and calls that work pasted as they are."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

from tollgate.home import Ready, default_home, home_folder
from tollgate.supervisor.engines import Engines
from tollgate.supervisor.options import Options

QUESTION = "What is 2+2?"
OUTPUT_TOKENS = 40  # the small model answers in a second or two, and stops where the sentence does


def text(ready: Ready, options: Options, engines: Engines, price: str, home: Path, seconds: float) -> str:
    """The whole text; seconds: how long the start took."""
    model = engines.pool.model
    processes = f"{options.workers} process{'es' if options.workers > 1 else ''}"
    rows = [
        ("API", f"{ready['api']}/v1   ({processes})"),
        ("app key", ready["app_key"]),
        ("model", f"{model}   ({engines.describe}: {', '.join(ready['engines'])})"),
        ("price", price),
        ("state", f"{home}   (logs/, ready.json for scripts)"),
    ]
    lines = [f"Tollgate is ready after {seconds:.1f} s.", ""]
    lines += [f"  {name:<8}  {value}" for name, value in rows]
    lines += ["", "Try, in another terminal:", ""]
    if "chat/completions" in engines.pool.checked_endpoints():
        call = _chat_call(ready, model)
        lines += ["  # a chat call", f"  {call}", ""]
        lines += [
            "  # the same again comes from the cache",
            f"  {call} -D - | grep -i -e x-cache -e content",
            "",
        ]
    lines += ["  # what it cost", f"  {_tollgate()} ledger spend", "", "Ctrl-C stops everything."]
    return "\n".join(lines)


def _chat_call(ready: Ready, model: str) -> str:
    messages = [{"role": "user", "content": QUESTION}]
    body = {"model": model, "temperature": 0, "max_tokens": OUTPUT_TOKENS, "messages": messages}
    return (
        f"curl -s {ready['api']}/v1/chat/completions -H 'Authorization: Bearer {ready['app_key']}' "
        f"-H 'Content-Type: application/json' -d {shlex.quote(json.dumps(body))}"
    )


def _tollgate() -> str:
    """The command as it can be pasted here: relative where it can be, with the home where it differs."""
    program = Path(sys.prefix) / "bin" / "tollgate"
    try:
        shown = str(program.relative_to(Path.cwd()))
    except ValueError:
        shown = str(program)
    home = home_folder()
    prefix = "" if home == default_home() else f"TOLLGATE_HOME={shlex.quote(str(home))} "
    return prefix + shlex.quote(shown)
