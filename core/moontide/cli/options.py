"""Flags that are options of the configuration, for the subcommands that take some of them."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import click

from moontide.config import Config, describe, load_config


def option_flags(*names: str, **metavars: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds a flag per named option; the function gets the text that was given, or None, under the option's name."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        decorated = function
        for name in reversed(names):
            description, allowed = describe(name)
            flag = "--" + name.replace("_", "-")
            metavar = metavars.get(name, "VALUE")
            option = click.option(flag, name, default=None, metavar=metavar, help=f"{description} [{allowed}]")
            decorated = option(decorated)
        return decorated

    return decorate


def config_options(*names: str, **metavars: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds a flag per named option and passes the effective configuration as `config`.

    The values are parsed by moontide.config, so that flags, variables and the file take the same words. A metavar may
    be given per option: ``config_options("lend", lend="SIZE")``.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            flags = {name: kwargs.pop(name) for name in names}
            return function(*args, config=load_config(flags), **kwargs)

        return option_flags(*names, **metavars)(wrapper)

    return decorate


def set_up_logging(config: Config) -> None:
    """One line per event on standard error."""
    logging.basicConfig(
        level=config.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True
    )
