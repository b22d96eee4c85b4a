"""What transformers raises over a model's files -> errors that name the model and what to do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hpd_core.checkpoint import ModelNotFoundError, ModelUnavailableError
from hpd_core.passing import is_passing
from hpd_core.settings import SettingsError
from hpd_core.supported import UnsupportedModelError


@contextmanager
def explained(path: str, what: str) -> Iterator[None]:
    """What transformers raises over a model's files, in words of the model: ModelNotFoundError, ModelUnavailableError
    where the hub does not answer, SettingsError, UnsupportedModelError. what: is read of them."""
    try:
        yield
    # Ours are kinds of OSError and ValueError, too, and say already what is wrong.
    except (ModelNotFoundError, SettingsError, UnsupportedModelError, MemoryError):
        raise
    except OSError as error:
        if is_passing(error):
            raise ModelUnavailableError(f"model {path}: {_first_line(error)}") from error
        token = "" if Path(path).is_dir() else "; a gated or private model needs a token in HF_TOKEN"
        raise ModelNotFoundError(f"model {path}: {_first_line(error)}{token}") from error
    except (ValueError, KeyError) as error:
        if "trust_remote_code" in str(error):
            raise SettingsError(
                f"model {path} brings code of its own, which runs only if you trust it: trust_remote_code: true"
            ) from error
        if "does not recognize this architecture" in str(error):
            raise UnsupportedModelError(f"model {path}: {_first_line(error)}") from error
        raise _unusable(path, what, error) from error
    except Exception as error:  # broken files, values of another type, missing packages: all kinds of them
        if "out of memory" in str(error):
            raise
        if is_passing(error):  # the hub's own client, whose errors are none of Python's
            raise ModelUnavailableError(f"model {path}: {type(error).__name__}: {_first_line(error)}") from error
        raise _unusable(path, what, error) from error


def _unusable(path: str, what: str, error: Exception) -> SettingsError:
    """Names the JSON files that hold none, which whoever reads several of them does not."""
    broken = [file.name for file in sorted(Path(path).glob("*.json")) if not _is_json(file)]
    where = f" ({', '.join(broken)} {'holds' if len(broken) == 1 else 'hold'} no JSON)" if broken else ""
    return SettingsError(
        f"model {path}: its {what} cannot be used{where}: {type(error).__name__}: {' '.join(str(error).split())}"
    )


def _is_json(path: Path) -> bool:
    try:
        json.loads(path.read_bytes())
    except ValueError:
        return False
    return True


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
