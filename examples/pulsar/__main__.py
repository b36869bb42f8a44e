"""`python -m examples.pulsar [STRATEGY] [--load]`: a Pulsar on this machine until Ctrl-C, with a skewed load."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys

from examples.pulsar.artifacts import NotPossibleHereError
from examples.pulsar.cluster import PulsarCluster
from examples.pulsar.skew import Skew, running_load


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.pulsar", description="A Pulsar on this machine.")
    parser.add_argument("strategy", nargs="?", default="UniformLoadShedder", help="what its brokers would shed by")
    parser.add_argument("--load", action="store_true", help="producers and consumers that load one broker most")
    wanted = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        with PulsarCluster(strategy=wanted.strategy) as cluster, contextlib.ExitStack() as running:
            if wanted.load:
                running.enter_context(running_load(cluster, Skew().prepare(cluster)))
                print("messages flow")
            print(f"zk:{cluster.zookeeper}  {'  '.join(each.web_url for each in cluster.brokers)}", flush=True)
            signal.pause()
    except NotPossibleHereError as error:
        print(error, file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
