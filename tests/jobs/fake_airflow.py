"""As much of Airflow as parsing a DAG file takes, and the operators' own code runs in: no scheduler, no database."""

from __future__ import annotations

import importlib.util
import logging
import sys
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

FOLDER = Path(__file__).resolve().parents[2] / "jobs/airflow"
FILES = sorted(path.stem for path in FOLDER.glob("*.py"))


class AirflowException(Exception): ...


class AirflowFailException(AirflowException): ...


class AirflowSkipException(AirflowException): ...


class TaskDeferralError(AirflowException): ...


class TaskDeferred(BaseException):
    def __init__(self, trigger: Any, method_name: str, timeout: Any) -> None:
        self.trigger, self.method_name, self.timeout = trigger, method_name, timeout


class BaseTrigger:
    def __init__(self) -> None:
        self.log = logging.getLogger("trigger")


class TriggerEvent:
    def __init__(self, payload: Any) -> None:
        self.payload = payload


class Conf:
    """Airflow's configuration. values: {(section, key): value}."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, str], str] = {}

    def get(self, section: str, key: str, fallback: str) -> str:
        return self.values.get((section, key), fallback)


class Param:
    def __init__(self, default: Any = None, **schema: Any) -> None:
        self.default, self.schema = default, schema


class DAG:
    current: DAG | None = None
    #: Of every `with DAG` that ran, in whichever module: Airflow's DagContext counts them for the file being parsed.
    registered: ClassVar[list[DAG]] = []

    def __init__(self, **settings: Any) -> None:
        self.settings = settings
        self.tasks: dict[str, BaseOperator] = {}

    def __enter__(self) -> DAG:
        DAG.current = self
        return self

    def __exit__(self, *error: object) -> None:
        DAG.current = None
        DAG.registered.append(self)

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

    def defer(self, *, trigger: Any, method_name: str, timeout: Any) -> None:
        raise TaskDeferred(trigger, method_name, timeout)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any], context: Any) -> Any:
        if next_method == "__fail__":
            raise TaskDeferralError(next_kwargs["error"])
        return getattr(self, next_method)(context, **next_kwargs)

    def __rshift__(self, other: BaseOperator) -> BaseOperator:
        self.downstream.append(other.task_id)
        return other


def modules() -> dict[str, ModuleType]:
    """What stands in for Airflow in `sys.modules`."""
    contents: dict[str, tuple[type, ...]] = {
        "airflow": (),
        "airflow.sdk": (DAG, BaseOperator, Param),
        "airflow.sdk.exceptions": (AirflowException, AirflowFailException, AirflowSkipException, TaskDeferralError),
        "airflow.sdk.configuration": (),
        "airflow.triggers": (),
        "airflow.triggers.base": (BaseTrigger, TriggerEvent),
    }
    made = {name: ModuleType(name) for name in contents}
    for name, kinds in contents.items():
        for kind in kinds:
            setattr(made[name], kind.__name__, kind)
    made["airflow.sdk.configuration"].conf = Conf()  # type: ignore[attr-defined]
    return made


def load(name: str) -> ModuleType:
    """A file of jobs/airflow, parsed now, as the module `name`."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # by which others find it
    spec.loader.exec_module(module)
    return module


def found(name: str) -> list[str]:
    """Ids of the DAGs that Airflow finds in this file of jobs/airflow, each parse being a process of its own there."""
    for other in FILES:
        sys.modules.pop(other, None)
    DAG.registered = []
    at_top_level = [value for value in vars(load(name)).values() if isinstance(value, DAG)]
    return sorted({dag.settings["dag_id"] for dag in [*at_top_level, *DAG.registered]})


def context(module: ModuleType, **params: Any) -> dict[str, Any]:
    """Of a task that waits in the worker, unless `deferrable` is given."""
    return {
        "params": module.dag.defaults | {"deferrable": False} | params,
        "logical_date": datetime(2026, 11, 30),
        "dag_run": None,
    }
