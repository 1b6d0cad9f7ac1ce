"""Certificates for tests, made by the openssl command."""

from __future__ import annotations

import subprocess
from pathlib import Path

_NEW_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]


class Authority:
    """A certificate authority in a folder; `issue` makes what the options tls_cert, tls_key and tls_ca name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self._run("req", "-x509", *_NEW_KEY, "-days", "2", "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.pem")

    def issue(self, name: str) -> dict[str, str]:
        self._run("req", *_NEW_KEY, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        signing = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2"]
        self._run("x509", "-req", "-in", f"{name}.csr", *signing, "-out", f"{name}.pem")
        (self.folder / f"{name}.key").chmod(0o600)
        files = {"tls_cert": f"{name}.pem", "tls_key": f"{name}.key", "tls_ca": "ca.pem"}
        return {option: str(self.folder / file) for option, file in files.items()}

    def _run(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self.folder, check=True, capture_output=True)
