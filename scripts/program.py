"""What every command-line program shares: errors that a person can read, and a status."""

import logging
import sys
from collections.abc import Callable

from longctx.train.checkpoint import CheckpointError
from longctx.train.loop import Interrupted, NonFiniteLoss


def run(main: Callable[[list[str]], None]) -> None:
    """Run a program's main function and exit: 0 done, 1 an error in what was given, 130 stopped."""
    logging.getLogger("absl").setLevel(logging.CRITICAL)  # orbax's errors are raised as well
    try:
        main(sys.argv[1:])
    except Interrupted as stop:
        print(f"\n{stop}", file=sys.stderr)
        sys.exit(130)
    except KeyboardInterrupt:
        print("\nstopped by SIGINT", file=sys.stderr)
        sys.exit(130)
    except (ValueError, OSError, ModuleNotFoundError, CheckpointError, NonFiniteLoss) as error:
        print(f"\nerror: {error}", file=sys.stderr)
        sys.exit(1)
