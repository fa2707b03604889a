"""Run inside an environment: prints `name==version` of each distribution whose files are not all there.

A killed pip leaves such ones. Files are compared by existence only: pip writes a package's RECORD last.
"""

from importlib.metadata import distributions
from pathlib import Path

for distribution in distributions():
    name, files = distribution.metadata["Name"], distribution.files
    if name == "vllm" and files is None:
        continue  # the name that the builder itself added
    if files is None or any(not Path(file.locate()).exists() for file in files if file.suffix != ".pyc"):
        print(f"{name}=={distribution.version}")  # noqa: T201 - read by the builder
