"""The bench that puts the project beside its peers and beside bare loops, in one run."""

from __future__ import annotations
