"""What operators trip over: facts about this machine, and what they mean.

`read_system` asks the machine, `examine` judges what it said; the latter is pure, so recorded systems can be judged
anywhere.
"""

from __future__ import annotations

from moontide.doctor.checks import examine
from moontide.doctor.probe import read_system
from moontide.doctor.system import Finding, HugePages, Library, Nic, Port, Server, System

__all__ = ["Finding", "HugePages", "Library", "Nic", "Port", "Server", "System", "examine", "read_system"]
