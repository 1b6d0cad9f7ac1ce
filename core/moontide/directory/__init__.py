"""Who has which segment: names under which processes publish the addresses of their engines.

`connect` gives the asynchronous form, `Names` the blocking one over it; `Engine.publish` and `Engine.open` use that.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from moontide.directory.base import LIST_LIMIT, Directory
from moontide.directory.direct import DirectDirectory
from moontide.directory.names import Names
from moontide.directory.publication import Publication
from moontide.directory.record import Record
from moontide.errors import Invalid, Unsupported

__all__ = ["LIST_LIMIT", "Directory", "Names", "Publication", "Record", "connect"]


def connect(url: str, *, timeout: float = 2.0) -> Directory:
    """The directory of an option's text: "direct", "http://...", "etcd://...", "redis://...".

    Call it within the event loop that will use it; nothing is connected yet. `timeout`: seconds per call.
    Invalid, Unsupported (the redis package is missing).
    """
    scheme, host = url.partition(":")[0], urlsplit(url).netloc
    if url == "direct":
        return DirectDirectory()
    if scheme == "http" and host:
        from moontide.directory.http import HttpDirectory

        return HttpDirectory(host, timeout=timeout)
    if scheme == "etcd" and host:
        from moontide.directory.etcd import EtcdDirectory

        return EtcdDirectory(host, timeout=timeout)
    if scheme == "redis" and host:
        try:
            from moontide.directory.redis import RedisDirectory
        except ModuleNotFoundError as error:
            raise Unsupported(f"directory = redis://...: {error}; pip install 'moontide[redis]'") from None
        return RedisDirectory(url, timeout=timeout)
    raise Invalid(f"directory = {scheme + ':...'!r}: allowed are direct, http://, etcd:// and redis:// with HOST:PORT")
