"""Adapters between inference engines and Moontide, one package each; installed as ``moontide.plugins.X``."""

from __future__ import annotations
