"""Optional libraries, imported when something needs them."""

import importlib
from typing import Any


def import_extra(module: str, extra: str) -> Any:
    """Return a library that comes with an extra of this distribution.

    Raises:
        ModuleNotFoundError: it is not installed; the text is the command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name != package:
            raise
        raise ModuleNotFoundError(
            f"this needs {package}, which is not installed: pip install 'longctx-music[{extra}]'",
            name=package,
        ) from None
