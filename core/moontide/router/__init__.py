"""An OpenAI-compatible front of prefill and decode servers."""

from __future__ import annotations
