"""The command `tollgate`: mounts the subcommands and turns errors into one sentence and an exit code."""

from __future__ import annotations

import errno
import importlib
import sys

import typer

from tollgate.errors import TollgateError

# Name of the subcommand, and where it is: imported only when it is called, so that `tollgate up` starts fast.
GROUPS = {
    "orgs": "tollgate.commands.orgs",
    "apps": "tollgate.commands.apps",
    "keys": "tollgate.commands.keys",
    "models": "tollgate.commands.models",
    "engines": "tollgate.commands.engines",
    "ledger": "tollgate.commands.ledger",
    "prices": "tollgate.commands.prices",
}
COMMANDS = {
    "up": "tollgate.commands.up",
    "migrate": "tollgate.commands.migrate",
}


def command_line(words: list[str]) -> typer.Typer:
    """The whole command line, or only the one subcommand that the words call."""
    line = typer.Typer(
        name="tollgate",
        help="An AI inference gateway with a ledger: one key, one budget, one bill.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    wanted = next((word for word in words if not word.startswith("-")), None)
    only = {wanted} if wanted in GROUPS or wanted in COMMANDS else None
    for name, module in {**COMMANDS, **GROUPS}.items():
        if only is None or name in only:
            line.add_typer(importlib.import_module(module).app, name=name)
    return line


def main() -> None:
    """Run the command line; a TollgateError becomes its sentence on stderr and exit code 1."""
    try:
        command_line(sys.argv[1:])(prog_name="tollgate")
    except TollgateError as error:
        print(f"tollgate: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        where = f" for {error.filename}" if error.filename else ""
        print(f"tollgate: The disk is full{where}; make room and start again.", file=sys.stderr)
        raise SystemExit(1) from None
