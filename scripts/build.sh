#!/usr/bin/env bash
# Makes .venv with the tools, and builds the package into it in place. Quick when nothing changed.
# usage: build.sh [venv|install|wheel]   venv: the tools only; wheel: the wheel into dist/
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
venv=.venv
mkdir -p build
exec 9>build/.lock
flock 9

# The marker is written last: an environment whose making was interrupted is completed by the next call.
if ! cmp -s scripts/requirements-dev.txt $venv/.requirements-done; then
  [ -x $venv/bin/python ] || "$python" -m venv $venv
  $venv/bin/pip install -q --disable-pip-version-check -r scripts/requirements-dev.txt
  cp scripts/requirements-dev.txt $venv/.requirements-done
fi
[ "${1:-install}" != venv ] || exit 0

export CCACHE_NOHASHDIR=1
export PATH=$PWD/$venv/bin:$PATH
if [ "${1:-install}" = wheel ]; then
  rm -f dist/moontide-*.whl
  nice -n 5 $venv/bin/pip wheel -q --disable-pip-version-check --no-build-isolation --no-deps -w dist .
  ls dist/moontide-*.whl
  exit 0
fi
site=$($venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("platlib"))')
tree=$(ls -d build/cp*-*/ 2>/dev/null | head -n 1 || true)
# Only what pip records (metadata, entry points, CMake's arguments) needs pip; the C++ alone is cmake's work.
if cmp -s pyproject.toml $venv/.pyproject-done && [ -n "$tree" ] && [ -e "$tree/CMakeCache.txt" ]; then
  nice -n 5 cmake --build "$tree"
  # By renaming: a process that has the old file mapped goes on with it.
  cmake --install "$tree" --prefix build/installed --strip >/dev/null
  mv -f build/installed/moontide/_core*.so "$site/moontide/"
else
  # No isolation: compile_commands.json must name a pybind11 that stays.
  nice -n 5 $venv/bin/pip install -q --disable-pip-version-check --no-build-isolation -e .
  cp pyproject.toml $venv/.pyproject-done
fi
$venv/bin/python -c 'import moontide'
