"""As much of Airflow as parsing a DAG file takes, and the operators' own code runs in: no scheduler, no database."""

from __future__ import annotations

import importlib.util
import logging
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

FOLDER = Path(__file__).resolve().parents[2] / "jobs/airflow"


class AirflowException(Exception): ...


class AirflowFailException(AirflowException): ...


class AirflowSkipException(AirflowException): ...


class Param:
    def __init__(self, default: Any = None, **schema: Any) -> None:
        self.default, self.schema = default, schema


class DAG:
    current: DAG | None = None

    def __init__(self, **settings: Any) -> None:
        self.settings = settings
        self.tasks: dict[str, BaseOperator] = {}

    def __enter__(self) -> DAG:
        DAG.current = self
        return self

    def __exit__(self, *error: object) -> None:
        DAG.current = None

    @property
    def defaults(self) -> dict[str, Any]:
        return {name: param.default for name, param in self.settings["params"].items()}


class BaseOperator:
    def __init__(self, *, task_id: str, **settings: Any) -> None:
        self.task_id, self.settings = task_id, settings
        self.log = logging.getLogger("task")
        self.downstream: list[str] = []
        if DAG.current is not None:
            DAG.current.tasks[task_id] = self

    def __rshift__(self, other: BaseOperator) -> BaseOperator:
        self.downstream.append(other.task_id)
        return other


def modules() -> dict[str, ModuleType]:
    """What stands in for Airflow in `sys.modules`."""
    made = {name: ModuleType(name) for name in ("airflow", "airflow.sdk", "airflow.sdk.exceptions")}
    for kind in (DAG, BaseOperator, Param):
        setattr(made["airflow.sdk"], kind.__name__, kind)
    for error in (AirflowException, AirflowFailException, AirflowSkipException):
        setattr(made["airflow.sdk.exceptions"], error.__name__, error)
    return made


def load(name: str) -> ModuleType:
    """A DAG file of jobs/airflow, parsed now, as the module `name`."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # by which the other one finds it
    spec.loader.exec_module(module)
    return module
