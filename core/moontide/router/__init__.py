"""An OpenAI-compatible front of prefill and decode servers."""

from __future__ import annotations

from moontide.router.app import Router, serve
from moontide.router.flow import Limits

__all__ = ["Limits", "Router", "serve"]
