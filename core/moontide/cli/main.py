"""The command group. `--help` lists the subcommands without importing any of them."""

from __future__ import annotations

import importlib

import click

from moontide import __version__
from moontide.errors import MoontideError

# Name → (module, what it does). The module has a click command of the subcommand's name.
_COMMANDS = {
    "bench": ("moontide.cli.bench", "Measure transfers on this machine."),
    "config": ("moontide.cli.config", "Print the effective configuration and where each value comes from."),
    "doctor": ("moontide.cli.doctor", "Look for what keeps Moontide from working well here, and say what to do."),
    "drain": ("moontide.cli.pool", "Have the objects of a node go to others."),
    "get": ("moontide.cli.pool", "Write the bytes of an object of the pool."),
    "health": ("moontide.cli.admin", "Say whether the pool can be used."),
    "ls": ("moontide.cli.pool", "List objects of the pool."),
    "master": ("moontide.cli.master", "Run the pool's master."),
    "node": ("moontide.cli.node", "Lend memory of this machine to the pool."),
    "pin": ("moontide.cli.pool", "Say anew how long objects of the pool are kept."),
    "plan": ("moontide.cli.plan", "Say what a pool of a given size holds."),
    "put": ("moontide.cli.pool", "Store bytes in the pool."),
    "rm": ("moontide.cli.pool", "Remove objects from the pool."),
    "segments": ("moontide.cli.admin", "Show the nodes of the pool and what they lend."),
    "stat": ("moontide.cli.pool", "Show the length and the places of objects of the pool."),
    "status": ("moontide.cli.pool", "Show the pool's numbers."),
    "top": ("moontide.cli.top", "Show what running processes do: rates, times, the oldest transfer."),
    "router": ("moontide.cli.router", "Send requests to prefill and decode servers."),
    "topology": ("moontide.cli.topology", "Show which NICs, GPUs and disks are near to which memory."),
}


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(_COMMANDS[name][0]), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, _COMMANDS[name][1]) for name in sorted(_COMMANDS)])

    def invoke(self, ctx: click.Context) -> object:
        """Errors of the documented tree are an answer, not a traceback."""
        try:
            return super().invoke(ctx)
        except MoontideError as error:
            raise click.ClickException(str(error)) from error


@click.command(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="moontide")
def main() -> None:
    """Moontide moves KV cache between the machines of an LLM serving fleet and keeps it in a pool of their memory."""
