"""Small measurements for users; the comparison with other libraries is in the repository's bench folder."""

from __future__ import annotations
