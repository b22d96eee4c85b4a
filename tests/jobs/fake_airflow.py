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
    """A DAG file of jobs/airflow, parsed now, as the module `name`."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # by which the other one finds it
    spec.loader.exec_module(module)
    return module
