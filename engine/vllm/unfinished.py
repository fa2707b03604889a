"""Run inside an environment: prints `name==version` of each distribution whose files are not all there.

A killed pip leaves such ones. It unpacks a package with the RECORD that came along, and when all is done it
writes RECORD anew, with an INSTALLER in it: so a package without that was cut off, whatever else is there.
"""

from importlib.metadata import Distribution, distributions
from pathlib import Path


def is_whole(distribution: Distribution) -> bool:
    files = distribution.files or []
    if not any(file.name == "INSTALLER" for file in files):
        return False
    return all(Path(str(file.locate())).exists() for file in files if file.suffix != ".pyc")


for found in distributions():
    name = found.metadata["Name"]
    added_by_the_builder = name == "vllm" and found.files is None
    if not added_by_the_builder and not is_whole(found):
        print(f"{name}=={found.version}")  # noqa: T201 - read by the builder
