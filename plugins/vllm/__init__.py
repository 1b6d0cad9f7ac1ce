"""Moontide for vLLM.

Installed with the wheel, found by vLLM through the ``vllm.general_plugins`` entry point. All a user types is
``--kv-transfer-config '{"kv_connector":"MoontideConnector","kv_role":"kv_both"}'``.
"""

from __future__ import annotations

__all__ = ["CONNECTOR", "register"]

# Registered under the class's own name: vLLM looks connectors up by it when it rebuilds their statistics.
CONNECTOR = "MoontideConnector"
_MODULE = "moontide.plugins.vllm.connector"


def register() -> None:
    """Makes the connector known. vLLM calls it in each of its processes, some of them more than once."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    if CONNECTOR not in KVConnectorFactory._registry:
        KVConnectorFactory.register_connector(CONNECTOR, _MODULE, CONNECTOR)
