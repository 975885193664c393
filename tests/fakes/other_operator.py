"""The operator as it may be one day, or in a hurry: ``other_operator.py HOW... options``, HOW being
``next-contract`` (it speaks the contract after ours, and ours), ``takes-over`` (jobs of another operator, at
once) or ``impatient`` (that, and it replaces agents that it can't talk to after seconds, not minutes)."""

from __future__ import annotations

import sys
from collections.abc import Callable

import resumable_training.contract as contract

IMPATIENT_SECONDS = 3.0


def program(how: str) -> tuple[str, ...]:
    """What Python is to run."""
    return (__file__, how)


def next_contract() -> None:
    """Before anybody has read the number."""
    contract.CONTRACT_VERSION += 1
    contract.SUPPORTED_CONTRACT_VERSIONS = (contract.CONTRACT_VERSION, contract.CONTRACT_VERSION - 1)


def takes_over() -> None:
    from resumable_operator.decide import claim

    claim.TAKE_OVER_SECONDS = 0.0


def impatient() -> None:
    from resumable_operator.decide import distrust, forming

    takes_over()
    forming.LONGEST_FORMING_SECONDS = IMPATIENT_SECONDS
    for kind in distrust.PATIENCE_SECONDS:
        distrust.PATIENCE_SECONDS[kind] = IMPATIENT_SECONDS


HOW: dict[str, Callable[[], None]] = {
    "next-contract": next_contract,
    "takes-over": takes_over,
    "impatient": impatient,
}


if __name__ == "__main__":
    HOW[sys.argv[1]]()
    from resumable_operator import __main__ as operator

    operator.main(sys.argv[2:])
