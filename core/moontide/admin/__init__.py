"""What a master serves to those who run it, over HTTP: its health, its state, its objects, and a page to look at."""

from __future__ import annotations

from moontide.admin.health import Health, SelfTest, judge
from moontide.admin.service import PoolService

__all__ = ["Health", "PoolService", "SelfTest", "judge"]
