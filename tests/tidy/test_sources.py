"""Every file of the project passes every check, and every check catches what it is for."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tidy.layers import check_imports, check_includes
from tidy.size import check_size, cpp_functions
from tidy.sources import Source, sources
from tidy.words import check_environment, check_sleep, check_unpickling, check_words

Check = Callable[[Source], Iterator[str]]
CHECKS: list[Check] = [
    check_includes,
    check_imports,
    check_size,
    check_words,
    check_environment,
    check_unpickling,
    check_sleep,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_project(check: Check) -> None:
    found = [finding for source in sources() for finding in check(source)]
    assert not found, "\n".join(["", *found])


def test_project_has_files() -> None:
    paths = {source.path for source in sources()}
    assert {"csrc/base/status.h", "core/moontide/config.py", "Makefile", "plugins/__init__.py"} <= paths


CAUGHT: list[tuple[Check, str, str]] = [
    (check_includes, "csrc/base/x.h", '#include "io/reactor.h"\n'),
    (check_includes, "csrc/catalog/x.cpp", '#include "io/reactor.h"\n'),
    (check_includes, "csrc/wire/x.h", '  #  include "rpc/channel.h"\n'),
    (check_includes, "csrc/rpc/x.h", '#include "transport/transport.h"\n'),
    (check_includes, "csrc/transport/tcp/x.cpp", '#include "transport/shm/shm.h"\n'),
    (check_includes, "csrc/engine/x.cpp", '#include "transport/tcp/tcp.h"\n'),
    (check_includes, "csrc/store/x.cpp", "#include <pybind11/pybind11.h>\n"),
    (check_includes, "csrc/novelty/x.h", "\n"),
    (check_imports, "core/moontide/x.py", "def f():\n    import vllm\n"),
    (check_imports, "core/moontide/x.py", "import numpy as np\n"),
    (check_imports, "core/moontide/x.py", "try:\n    import torch\nexcept ImportError:\n    torch = None\n"),
    (check_imports, "core/moontide/x.py", "from moontide.plugins import vllm\n"),
    (check_imports, "core/moontide/x.py", "def f():\n    from moontide.plugins.vllm import register\n"),
    (check_imports, "core/moontide/x.py", "import demo.client\n"),
    (check_imports, "plugins/vllm/__init__.py", "import vllm\n"),
    (check_imports, "plugins/vllm/x.py", "import sglang\n"),
    (check_imports, "plugins/vllm/x.py", "import moontide.plugins.sglang\n"),
    (check_size, "core/x.py", "x = 1\n" * 500),
    (check_size, "tests/x.py", "x = 1\n" * 800),
    (check_size, "csrc/base/x.h", "\n" * 500),
    (check_size, "core/x.py", "class C:\n    async def f(self):\n" + "        x = 1\n" * 69),
    (check_size, "csrc/base/x.cpp", "namespace a {\nint f(int x = 3) {\n" + "  x++;\n" * 68 + "}\n}\n"),
    (check_words, "README.md", "see py" + "pi.org\n"),
    (check_words, "demo/x.py", "# TO" + "DO: finish\n"),
    (check_words, "csrc/base/x.h", "int x;  // NO" + "LINT\n"),
    (check_words, "scripts/x.sh", "cd /wo" + "rk/main\n"),
    (check_words, "core/x.py", "x: int = 0  # type: " + "ignore\n"),
    (check_words, "core/x.py", "import x  # no" + "qa: F401\n"),
    (check_environment, "core/moontide/x.py", "import os\nhome = os.environ['HOME']\n"),
    (check_environment, "plugins/vllm/x.py", "from os import path, getenv\n"),
    (check_environment, "csrc/base/x.cpp", 'auto home = std::getenv("HOME");\n'),
    (check_unpickling, "core/moontide/x.py", "import pickle\n"),
    (check_unpickling, "plugins/vllm/x.py", "value = torch.load(file)\n"),
    (check_unpickling, "core/moontide/x.py", "answer = eval(text)\n"),
    (check_sleep, "tests/unit/x.py", "import time\ntime.sleep(0.1)\n"),
    (check_sleep, "tests/unit/x.py", "await asyncio." + "sleep(0.01)\n"),
    (check_sleep, "tests/unit/x.cpp", "std::this_thread::sleep_for(1ms);\n"),
]


@pytest.mark.parametrize(("check", "path", "text"), CAUGHT)
def test_check_catches(check: Check, path: str, text: str) -> None:
    assert list(check(Source(path, text)))


PASSED: list[tuple[Check, str, str]] = [
    (check_includes, "csrc/engine/x.cpp", '#include "base/status.h"\n#include "transport/transport.h"\n'),
    (check_includes, "csrc/transport/builtin.cpp", '#include "transport/tcp/tcp.h"\n'),
    (check_includes, "csrc/transport/tcp/x.cpp", '#include "transport/tcp/tcp.h"\n#include <sys/socket.h>\n'),
    (check_imports, "core/moontide/x.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch\n"),
    (check_imports, "core/moontide/x.py", "def f():\n    import torch\n"),
    (check_imports, "plugins/vllm/x.py", "import torch\nfrom vllm.config import VllmConfig\n"),
    (check_size, "core/x.py", "def f():\n" + "    x = 1\n" * 68),
    (check_size, "csrc/base/x.cpp", "namespace a {\n" + "int f() { return 1; }\n" * 80 + "}\n"),
    (check_size, "csrc/base/x.cpp", "struct A {\n" + "  int x;\n" * 80 + "};\nint a[] = {\n" + "1,\n" * 80 + "};\n"),
    (check_environment, "demo/x.py", "import os\nos.environ\n"),
    (check_environment, "core/moontide/config.py", "import os\nos.environ\n"),
    (check_unpickling, "core/moontide/x.py", "re.compile(pattern)\nmodel.eval()\n"),
    (check_sleep, "tests/unit/x.py", "await asyncio.sleep(0)\n"),
]


@pytest.mark.parametrize(("check", "path", "text"), PASSED)
def test_check_lets_pass(check: Check, path: str, text: str) -> None:
    assert not list(check(Source(path, text)))


def test_cpp_functions_are_found() -> None:
    text = """\
#define M(x) \\
  { x }
namespace a {
// { not code
struct S {
  S& operator=(const S& other) noexcept {
    return *this;
  }
  int x = 0;
};
template <class T>
std::vector<int> f(T t, std::string s = "{") {
  if (t) { return {1, 2}; }
  auto g = [&](int i) {
    return i;
  };
  return {};
}
S::S() : x(1), y{2} {}
TEST_CASE("one") {
}
}  // namespace a
"""
    found = [(first, count) for _, first, count in cpp_functions(text)]
    assert (6, 3) in found and (11, 8) in found and (20, 2) in found
