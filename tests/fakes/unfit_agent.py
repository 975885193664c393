"""An agent whose ranks can't be killed, as when a driver holds them: its SIGKILL is never sent."""

import sys

from resumable_training.agent.__main__ import main
from resumable_training.agent.ranks import ColdStarter, StartedRank


class Stubborn(ColdStarter):
    """Starts ranks, ends none."""

    def kill(self, started: StartedRank) -> None:
        del started


if __name__ == "__main__":
    sys.exit(main(Stubborn(), reap_seconds=0.3))
