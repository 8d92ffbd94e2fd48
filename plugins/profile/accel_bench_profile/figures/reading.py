"""Read what profiled ranks have left in the folder of their run."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from accel_bench.errors import AccelBenchError
from accel_bench_profile.figures.schema import RankProfile

PROFILE_FOLDER = "profile"
"""Name of the folder in a run's folder that holds a folder of each profiled rank."""

PROFILE_FILE = "profile.json"
"""Name of a rank's profile in its folder."""


def read_profile(folder: Path) -> RankProfile | None:
    """Return the profile that lies in a rank's folder, or beside it where the folder could not be
    written; None where there is none.

    Raises AccelBenchError for one that this version cannot read.
    """
    for path in (folder / PROFILE_FILE, fallback(folder)):
        try:
            return RankProfile.model_validate_json(path.read_bytes())
        except OSError:
            continue
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise AccelBenchError(
                f"{path} is damaged, or of another version of accel-bench than this one "
                f"({where}: {first['msg']}); profile with the same version everywhere"
            ) from error
    return None


def fallback(folder: Path) -> Path:
    """Return where a profile is written when its own folder cannot be: beside the rank's result."""
    return folder.parent.parent / f"{folder.name}.{PROFILE_FILE}"
