"""KV cache of inference engines: keys, layouts, hand-over and reuse, without knowing any particular engine."""

from __future__ import annotations
