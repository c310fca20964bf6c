"""How a panel looks: the few kinds that dashboards are made of, each with what it shows and what to do.

Built with Grafana's foundation SDK (https://github.com/grafana/grafana-foundation-sdk), pinned to Grafana 11.6.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    nodegraph,
    prometheus,
    stat,
    statetimeline,
    statushistory,
    table,
    timeseries,
)
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import common as looks
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

DATASOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
"""The Prometheus that the viewer selects at the top."""

GREEN, YELLOW, ORANGE, RED, BLUE, GREY = "green", "yellow", "orange", "red", "blue", "#6e7687"

Panel = Builder[models.Panel]
Thresholds = Sequence[tuple[float | None, str]]
"""(from this value, colour), ascending; the first value is None, for everything below the second."""


@dataclass(frozen=True)
class Prose:
    """The texts of a panel."""

    title: str
    """A question."""
    shows: str
    """What the panel shows."""
    act: str
    """What to do when it looks wrong."""

    def description(self) -> str:
        """The text behind the panel's info mark, in Markdown."""
        return f"{self.shows}\n\n**What to do:** {self.act}"


@dataclass(frozen=True)
class Query:
    """One PromQL expression and how its series are named."""

    expr: str
    legend: str
    dashed: bool = False
    """Draw its lines dashed: a limit or a slower quantile beside the thing itself."""


@dataclass(frozen=True)
class Row:
    """A headed group of panels."""

    title: str
    panels: tuple[Panel, ...]


def lines(
    prose: Prose,
    queries: Sequence[Query],
    unit: str,
    *,
    span: int = 12,
    stacked: bool = False,
    thresholds: Thresholds | None = None,
) -> timeseries.Panel:
    """Values over time. `span` is of 24 columns; `unit` is one of Grafana's unit names."""
    panel = (
        timeseries.Panel()
        .title(prose.title)
        .description(prose.description())
        .datasource(DATASOURCE)
        .span(span)
        .height(8)
        .unit(unit)
        .axis_soft_min(0)
        .line_width(1)
        .fill_opacity(25 if stacked else 5)
        .show_points(looks.VisibilityMode.NEVER)
        .legend(
            common.VizLegendOptions()
            .show_legend(True)
            .display_mode(looks.LegendDisplayMode.TABLE)
            .placement(looks.LegendPlacement.RIGHT)
            .calcs(["lastNotNull", "max"])
        )
        .tooltip(common.VizTooltipOptions().mode(looks.TooltipDisplayMode.MULTI).sort(looks.SortOrder.DESCENDING))
    )
    if stacked:
        panel.stacking(common.StackingConfig().mode(looks.StackingMode.NORMAL))
    if thresholds is not None:
        panel.thresholds(_thresholds(thresholds))
        panel.thresholds_style(common.GraphThresholdsStyleConfig().mode(looks.GraphThresholdsStyleMode.DASHED))
    for ref_id, query in zip("ABCDEF", queries, strict=False):
        panel.with_target(_target(query.expr, ref_id).legend_format(query.legend))
        if query.dashed:
            panel.override_by_query(
                ref_id, [models.DynamicConfigValue("custom.lineStyle", {"fill": "dash", "dash": [6, 6]})]
            )
    return panel


def number(
    prose: Prose, expr: str, unit: str, thresholds: Thresholds, *, decimals: int = 0, span: int = 4
) -> stat.Panel:
    """One number, coloured by what it means."""
    return (
        stat.Panel()
        .title(prose.title)
        .description(prose.description())
        .datasource(DATASOURCE)
        .span(span)
        .height(4)
        .unit(unit)
        .decimals(decimals)
        .no_value("no data")
        .thresholds(_thresholds(thresholds))
        .color_mode(looks.BigValueColorMode.BACKGROUND_SOLID)
        .graph_mode(looks.BigValueGraphMode.NONE)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .with_target(_target(expr, "A").instant())
    )


def states(prose: Prose, query: Query, words: Mapping[int, tuple[str, str]], *, span: int = 12) -> statetimeline.Panel:
    """A strip a thing, coloured by its state over time. `words` gives each code its (word, colour)."""
    mapping = models.ValueMap(
        {
            str(code): models.ValueMappingResult(text=word, color=colour, index=position)
            for position, (code, (word, colour)) in enumerate(words.items())
        }
    )
    return (
        statetimeline.Panel()
        .title(prose.title)
        .description(prose.description())
        .datasource(DATASOURCE)
        .span(span)
        .height(8)
        .mappings([mapping])
        .row_height(0.85)
        .line_width(0)
        .fill_opacity(80)
        .show_value(looks.VisibilityMode.AUTO)
        .legend(common.VizLegendOptions().show_legend(False).display_mode(looks.LegendDisplayMode.LIST))
        .with_target(_target(query.expr, "A").legend_format(query.legend))
    )


def heat(prose: Prose, query: Query, thresholds: Thresholds) -> statushistory.Panel:
    """A row of cells a thing over time, coloured by a share, full at 1."""
    return (
        statushistory.Panel()
        .title(prose.title)
        .description(prose.description())
        .datasource(DATASOURCE)
        .span(12)
        .height(10)
        .unit("percentunit")
        .max_data_points(60)
        .thresholds(_thresholds(thresholds))
        .color_scheme(builders.FieldColor().mode(models.FieldColorModeId.THRESHOLDS))
        .row_height(0.9)
        .fill_opacity(90)
        .show_value(looks.VisibilityMode.NEVER)
        .legend(common.VizLegendOptions().show_legend(False).display_mode(looks.LegendDisplayMode.LIST))
        .with_target(_target(query.expr, "A").legend_format(query.legend))
    )


def bars(prose: Prose, query: Query, thresholds: Thresholds) -> bargauge.Panel:
    """One bar a thing, now: a share, full at 1."""
    return (
        bargauge.Panel()
        .title(prose.title)
        .description(prose.description())
        .datasource(DATASOURCE)
        .span(6)
        .height(8)
        .unit("percentunit")
        .min(0)
        .max(1)
        .thresholds(_thresholds(thresholds))
        .orientation(looks.VizOrientation.HORIZONTAL)
        .display_mode(looks.BarGaugeDisplayMode.BASIC)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .with_target(_target(query.expr, "A").instant().legend_format(query.legend))
    )


def rows_of(
    prose: Prose,
    expr: str,
    columns: Mapping[str, str],
    value: str,
    unit: str,
    *,
    gauge: bool = False,
    span: int = 12,
) -> table.Panel:
    """A table of labels and a value, now. `columns` maps label to heading, in order; `value` heads the number."""
    headings = {**columns, "Value": value}
    arranged = models.DataTransformerConfig(
        id_val="organize",
        options={
            "indexByName": {name: position for position, name in enumerate(headings)},
            "renameByName": headings,
            "excludeByName": {"Time": True},
        },
    )
    panel = _table(prose, expr, span).unit(unit).with_transformation(arranged)
    if gauge:
        bar = {"type": "gauge", "mode": "basic"}
        panel.override_by_name(
            value,
            [
                models.DynamicConfigValue("custom.cellOptions", bar),
                models.DynamicConfigValue("min", 0),
                models.DynamicConfigValue("max", 1),
            ],
        )
    return panel


def matrix(prose: Prose, expr: str, row: str, column: str, unit: str) -> table.Panel:
    """A table with a row for each value of one label and a column for each value of another, now."""
    crossed = models.DataTransformerConfig(
        id_val="groupingToMatrix", options={"rowField": row, "columnField": column, "valueField": "Value"}
    )
    return _table(prose, expr, 12).unit(unit).with_transformation(crossed)


def graph(prose: Prose, nodes: str, edges: str, unit: str) -> nodegraph.Panel:
    """A graph of what depends on what, now.

    Args:
        nodes: expression whose series have the labels `id` and `title`, and optionally `subtitle`.
        edges: expression whose series have the labels `id`, `source` and `target`, which are the `id` of nodes.
    """
    panel = (
        nodegraph.Panel()
        .title(prose.title)
        .description(prose.description())
        .datasource(DATASOURCE)
        .span(24)
        .height(12)
        .nodes(nodegraph.NodeOptions().main_stat_unit(unit))
        .edges(nodegraph.EdgeOptions().main_stat_unit(unit))
    )
    # The panel tells the frames apart by these names, and takes the number from the field `mainstat`.
    for ref_id, expr in (("nodes", nodes), ("edges", edges)):
        panel.with_target(_target(expr, ref_id).instant().format(PromQueryFormat.TABLE))
        panel.with_transformation(
            models.DataTransformerConfig(
                id_val="organize",
                filter_val=models.MatcherConfig(id_val="byRefId", options=ref_id),
                options={
                    "renameByName": {"Value": "mainstat", f"Value #{ref_id}": "mainstat"},
                    "excludeByName": {"Time": True},
                },
            )
        )
    return panel


def _table(prose: Prose, expr: str, span: int) -> table.Panel:
    return (
        table.Panel()
        .title(prose.title)
        .description(prose.description())
        .datasource(DATASOURCE)
        .span(span)
        .height(8)
        .no_value("-")
        .with_target(_target(expr, "A").instant().format(PromQueryFormat.TABLE))
    )


def _target(expr: str, ref_id: str) -> prometheus.Dataquery:
    return prometheus.Dataquery().expr(expr).ref_id(ref_id).datasource(DATASOURCE)


def _thresholds(steps: Thresholds) -> builders.ThresholdsConfig:
    return (
        builders.ThresholdsConfig()
        .mode(models.ThresholdsMode.ABSOLUTE)
        .steps([models.Threshold(value=value, color=colour) for value, colour in steps])
    )
