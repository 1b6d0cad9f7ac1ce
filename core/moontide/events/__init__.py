"""What happens to a pool's objects, as a stream that routers read: the form in which vLLM publishes its KV events."""

from __future__ import annotations

from moontide.events.index import EventIndex

__all__ = ["EventIndex"]
