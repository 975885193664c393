"""The wire format between operator, agent and ranks.

Standard library only and Python 3.9, because the agent that speaks it is copied into images we do not
control. Every message carries ``contract_version``; a reader accepts the versions in
``SUPPORTED_CONTRACT_VERSIONS`` and ignores fields it does not know.
"""

CONTRACT_VERSION = 1
SUPPORTED_CONTRACT_VERSIONS = (1,)
