"""Moontide moves KV cache between the machines of an LLM serving fleet and keeps it in a pool of their memory."""

from __future__ import annotations

from moontide._core import version as __version__

__all__ = ["__version__"]
