"""A peer that speaks the engine's protocol by hand (csrc/wire/frame.h, csrc/wire/engine_messages.h), up to a point: it
announces a region, takes what is written into it from the socket, answers signs of life, and nothing else."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading

MAGIC = 0x314D544D
PROBE, HELLO, DATA_STREAM, REGIONS, READY, FENCE, PING = 1, 2, 3, 4, 6, 8, 11
_REQUEST, _REPLY, _NOTICE = 1, 2, 3
_HEADER = struct.Struct("<IIBBHIQ")


def text(value: bytes) -> bytes:
    return struct.pack("<I", len(value)) + value


class LyingPeer:
    """Listens on loopback until `close`. `asked`: the requests that came, by number of message."""

    def __init__(self, region_bytes: int) -> None:
        self._region_bytes = region_bytes
        self._instance = os.urandom(16)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._connections: list[socket.socket] = []
        self.asked: list[int] = []
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for connection in (self._listener, *self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._connections.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError):
            while True:
                _, length, kind, _, message, _, number = _HEADER.unpack(self._exactly(connection, _HEADER.size))
                self._exactly(connection, length)
                if kind != _REQUEST:
                    continue
                self.asked.append(message)
                if message == PROBE:
                    self._send(connection, _REPLY, 0, self._who() + text(b"another host") + text(b""), number)
                elif message == HELLO:
                    self._greet(connection, number)
                elif message == PING:
                    self._send(connection, _REPLY, 0, b"", number)
                elif message == DATA_STREAM:
                    self._send(connection, _REPLY, 0, b"", number)
                    while connection.recv(1 << 20):
                        continue

    def _who(self) -> bytes:
        return struct.pack("<HH", 1, 1) + self._instance

    def _greet(self, connection: socket.socket, number: int) -> None:
        self._send(connection, _REPLY, 0, struct.pack("<H", 1) + self._instance + os.urandom(16), number)
        key = text(b"tcp") + struct.pack("<QI", 0, 1) + text(b"")
        region = struct.pack("<IQQBI", 1, 1, self._region_bytes, 3, 0) + text(b"heap") + struct.pack("<I", 1) + key
        self._send(connection, _NOTICE, REGIONS, struct.pack("<I", 1) + region)
        self._send(connection, _NOTICE, READY, struct.pack("<I", 1) + text(b"tcp") + text(b"") + b"\x01")

    @staticmethod
    def _send(connection: socket.socket, kind: int, message: int, payload: bytes, number: int = 0) -> None:
        connection.sendall(_HEADER.pack(MAGIC, len(payload), kind, 0, message, 0, number) + payload)

    @staticmethod
    def _exactly(connection: socket.socket, count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = connection.recv(count - len(data))
            if not part:
                raise EOFError
            data += part
        return data
