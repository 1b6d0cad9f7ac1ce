#!/usr/bin/env bash
# Finds what this machine lacks and installs the Debian packages that bring it.
# usage: system_packages.sh build|test|demo|bench, or clang: prints the compiler for the fuzz targets
# Looks for the thing itself, not for the package, so that other distributions and own compilers pass too.
# Without root, sudo or apt it prints the one line to run and exits with status 1.
set -euo pipefail

purpose=${1:-build}
python=${PYTHON:-python3}
missing=()

# libFuzzer comes with clang; libstdc++'s std::expected needs clang 19 or newer. Prints the first that can do both.
fuzz_compiler() {
  local candidate
  for candidate in clang++ clang++-{22,21,20,19}; do
    command -v "$candidate" >/dev/null || continue
    echo '#include <expected>
      extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return !std::expected<int, int>(1); }' |
      "$candidate" -std=c++23 -fsanitize=fuzzer,address,undefined -x c++ - -o /dev/null 2>/dev/null || continue
    echo "$candidate"
    return 0
  done
  return 1
}
if [ "$purpose" = clang ]; then
  fuzz_compiler || { echo "no clang++ 19 or newer with libFuzzer; see: $0 test" >&2; exit 1; }
  exit 0
fi

need() { # need PACKAGE COMMAND...: the command succeeds where the package is not needed
  local package=$1
  shift
  "$@" >/dev/null 2>&1 || missing+=("$package")
}
has_library() { PATH=$PATH:/sbin:/usr/sbin ldconfig -p | grep -q -- "$1"; }
has_python_header() { "$python" -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")'; }

need python3 command -v "$python"
need g++ command -v g++
need python3-dev has_python_header
need python3-venv "$python" -c 'import ensurepip, venv'
need ca-certificates test -e /etc/ssl/certs/ca-certificates.crt
need git command -v git
case $purpose in
  test | bench)
    need ccache command -v ccache
    need iproute2 command -v ip
    need doctest-dev test -e /usr/include/doctest/doctest.h
    need openssl command -v openssl
    need libssl3 has_library libssl.so.3
    ;;&
  test)
    need etcd-server command -v etcd
    need redis-server command -v redis-server
    need chromium command -v chromium
    need clang-19\ libclang-rt-19-dev fuzz_compiler
    ;;&
  test | demo | bench) need libnuma1 has_library libnuma.so.1 ;;&
  bench)
    need libibverbs1 has_library libibverbs.so.1
    need libcurl4 has_library libcurl.so.4
    ;;
esac

[ ${#missing[@]} -gt 0 ] || exit 0
line="apt-get install -y --no-install-recommends ${missing[*]}"
if ! command -v apt-get >/dev/null; then
  echo "missing: ${missing[*]} (names of Debian packages); install them with this system's package manager" >&2
  exit 1
fi
as_root=()
if [ "$(id -u)" != 0 ]; then
  if command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    as_root=(sudo -n)
  else
    echo "missing Debian packages; run this as root, then try again:" >&2
    echo "    $line" >&2
    exit 1
  fi
fi
echo "installing: ${missing[*]}"
# Tests start etcd and Redis themselves: as services of the system they are not wanted.
policy=/usr/sbin/policy-rc.d
if [ "$purpose" = test ] && [ ! -e $policy ]; then
  trap '"${as_root[@]}" rm -f $policy' EXIT
  printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee $policy >/dev/null
  "${as_root[@]}" chmod 755 $policy
fi
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update -q
"${as_root[@]}" $line
