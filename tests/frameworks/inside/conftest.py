"""These tests run where vLLM is: tests/frameworks/test_inside_vllm.py starts each file in a process of its own."""

from __future__ import annotations

import importlib.util

collect_ignore_glob = ["test_*.py"] if importlib.util.find_spec("vllm") is None else []
