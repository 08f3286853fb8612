"""The saved W&B view of a project: reward, KL, length and reward std, grouped by beta and by G, and what mattered."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from grpo_exp.errors import ConfigError, InputError, RunError
from grpo_exp.track.login import choose_mode

CURVES = ("reward/mean", "kl/mean", "length/mean", "reward/std")
SEARCHED = ("beta", "G", "temperature", "lr")


def build(entity: str, project: str, metric: str) -> Any:
    """The view as a `wandb_workspaces.Workspace`; nothing is sent.

    Raises:
        ConfigError: the package wandb-workspaces is not installed.
    """
    try:
        import wandb_workspaces.reports.v2 as reports
        import wandb_workspaces.workspaces as workspaces
    except ImportError as error:
        raise ConfigError("workspace needs the package wandb-workspaces: pip install wandb-workspaces") from error

    def curves(name: str, by: str | None) -> Any:
        grouped = (
            {} if by is None else {"groupby": reports.Config(by), "groupby_aggfunc": "mean", "groupby_rangefunc": "minmax"}
        )
        panels = [reports.LinePlot(title=y, x="step", y=[y], **grouped) for y in (*CURVES, metric)]
        return workspaces.Section(name=name, panels=panels, is_open=True)

    columns = [reports.ParallelCoordinatesPlotColumn(metric=reports.Config(key), log=key in ("beta", "lr")) for key in SEARCHED]
    columns.append(reports.ParallelCoordinatesPlotColumn(metric=reports.SummaryMetric(metric)))
    mattered = [
        reports.ParallelCoordinatesPlot(title="what was searched, and what it came to", columns=columns),
        reports.ParameterImportancePlot(with_respect_to=metric),
        reports.ScatterPlot(
            title="reward against KL", x=reports.SummaryMetric("kl/mean"), y=reports.SummaryMetric("reward/mean")
        ),
    ]
    sections = [
        curves("runs", None),
        *(curves(f"grouped by {key}", key) for key in ("beta", "G")),
        workspaces.Section(name="what mattered", panels=mattered, is_open=True),
    ]
    return workspaces.Workspace(entity=entity, project=project, name="grpo_exp", sections=sections)


def save(entity: str | None, project: str, metric: str, file: Path) -> str:
    """Save the view in W&B where there is a login and a team or user is named, otherwise write its JSON; returns where it is.

    Raises:
        InputError: the file cannot be written.
        RunError: W&B refused it.
    """
    online = choose_mode("auto", os.environ) == "online" and entity is not None
    view = build(entity or "ENTITY", project, metric)
    if not online:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(view._to_model().model_dump_json(indent=1), encoding="utf-8")
        except OSError as error:
            raise InputError(f"{file} cannot be written: {error.strerror}") from error
        return str(file)
    try:
        view.save()
    except Exception as error:  # the client raises what the server makes it
        raise RunError(f"W&B did not take the view: {type(error).__name__}: {str(error)[:300]}") from error
    return str(view.url)
