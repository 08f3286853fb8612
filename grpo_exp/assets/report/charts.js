"use strict";
// Heat map of two keys, parallel coordinates, what mattered (Optuna's own figures or main effects).
const goal = DATA.objective;
/** What can stand on an axis or in a cell: name -> function of a run. */
const MEASURES = new Map([
  [goal.metric, (run) => run.objective],
  ...unique(DATA.runs.flatMap((run) => Object.keys(run.final)))
    .filter((name) => name !== goal.metric)
    .map((name) => [name, (run) => run.final[name] ?? null]),
  ["tokens", (run) => run.tokens],
  ["seconds", (run) => run.seconds],
]);
const measured = (name) => DATA.runs.filter((run) => isNumber(MEASURES.get(name)?.(run)));
const measures = () => [...MEASURES.keys()].filter((name) => measured(name).length > 0);
const kl = ["kl/mean", "kl/k3", "kl/k1"].find((name) => MEASURES.has(name));

function heatSection() {
  const keys = DATA.varied.filter((v) => v.values.length > 1).map((v) => v.key);
  if (keys.length < 2 || !measured(goal.metric).length) return;
  const pick = (name, other) => (keys.includes(name) ? name : keys.find((key) => key !== other));
  const state = { x: pick("beta", null), y: null, z: goal.metric };
  state.y = state.x !== "G" && keys.includes("G") ? "G" : keys.find((key) => key !== state.x);
  const node = el("div", { class: "plot tall" }),
    names = keys.map((key) => [key, key]);
  let draw = () => {};
  const set = (part) => (value) => {
    state[part] = value;
    draw();
  };
  section(
    "heat",
    "Two keys at once",
    "The number in a cell is the mean over its finished runs.",
    el(
      "div",
      { class: "controls" },
      choice("across", names, state.x, set("x")),
      choice("up", names, state.y, set("y")),
      choice(
        "shown",
        measures().map((m) => [m, m]),
        state.z,
        set("z"),
      ),
    ),
    el("div", { class: "card" }, node),
  );
  draw = plot(node, () => heat(state, node.clientWidth));
}

function heat({ x, y, z }, width) {
  const [ofX, ofY] = [grouping(x), grouping(y)],
    cells = new Map();
  const runs = measured(z).filter((run) => run.status === "finished");
  const axis = (of) =>
    unique(runs.map((run) => of(run).order))
      .sort((a, b) => a - b)
      .map((order) => ({ order, label: plain(shorten(of(runs.find((run) => of(run).order === order)).label, 24)) }));
  const [columns, rows] = [axis(ofX), axis(ofY)];
  for (const run of runs) {
    const at = `${ofX(run).order} ${ofY(run).order}`;
    cells.set(at, [...(cells.get(at) ?? []), MEASURES.get(z)(run)]);
  }
  const longest = 7 * Math.max(1, ...columns.map((column) => column.label.length)); // px
  const table = rows.map((row) => columns.map((column) => cells.get(`${column.order} ${row.order}`) ?? null));
  const ticks = (list, key) => ({
    type: "category",
    tickvals: list.map((_, i) => i),
    ticktext: list.map((e) => e.label),
    title: { text: plain(key) },
    nticks: null,
    showgrid: false,
    tickangle: 0,
  });
  return {
    data: [
      {
        type: "heatmap",
        z: table.map((row) => row.map((v) => (v ? mean(v) : null))),
        x: columns.map((_, i) => i),
        y: rows.map((_, i) => i),
        text: table.map((row) => row.map((v) => (v ? showAs(z, mean(v)) : ""))),
        texttemplate: "%{text}",
        textfont: { size: 13 },
        customdata: table.map((row) => row.map((v) => (v ? v.length : 0))),
        xgap: 3,
        ygap: 3,
        colorscale: [
          [0, css("--low")],
          [1, css("--high")],
        ],
        showscale: false,
        hovertemplate: `${plain(x)} %{x}, ${plain(y)} %{y}<br>${plain(z)} <b>%{text}</b>, %{customdata} run(s)<extra></extra>`,
      },
    ],
    layout: layout({
      xaxis: { ...ticks(columns, x), tickangle: longest > width / (columns.length + 1) ? -45 : 0 },
      yaxis: ticks(rows, y),
      margin: { l: 60, r: 12, t: 8, b: 50 },
    }),
  };
}

function parallelSection() {
  const runs = measured(goal.metric),
    keys = DATA.varied.filter((v) => v.values.length > 1);
  if (!keys.length || runs.length < 3) return;
  const dimensions = () => [
    ...keys.map((v) =>
      parallelAxis(
        v.key,
        runs.map((run) => valueOf(run, v.key)),
        v.log,
      ),
    ),
    ...[kl, "length/mean", goal.metric]
      .filter((name) => name && measured(name).length)
      .map((name) => parallelAxis(name, runs.map(MEASURES.get(name)), false)),
  ];
  const node = el("div", { class: "plot tall" });
  node.style.minWidth = `${110 * (keys.length + 3)}px`;
  section(
    "parallel",
    "Parallel coordinates",
    "A line a run, coloured by " + goal.metric + "; drag along an axis to pick runs.",
    el("div", { class: "card" }, el("div", { class: "wide" }, node)),
  );
  const values = runs.map((run) => run.objective);
  plot(node, () => ({
    data: [
      {
        type: "parcoords",
        dimensions: dimensions(),
        labelfont: { color: css("--ink"), size: 12 },
        tickfont: { color: css("--quiet"), size: 11 },
        rangefont: { color: "rgba(0,0,0,0)" },
        line: {
          color: values,
          colorscale: ORDERED.map((c, i) => [i / (ORDERED.length - 1), c]),
          cmin: Math.min(...values),
          cmax: Math.max(...values),
        },
        unselected: { line: { color: css("--line"), opacity: 0.4 } },
      },
    ],
    layout: layout({ margin: { l: 60, r: 50, t: 50, b: 20 } }),
  }));
}

function parallelAxis(name, values, log) {
  const numbers = values.filter(isNumber),
    label = plain(shorten(name, 22));
  if (numbers.length < values.length || unique(numbers).length <= 4) {
    const all = unique(values).sort((a, b) => (isNumber(a) && isNumber(b) ? a - b : show(a) < show(b) ? -1 : 1));
    return {
      label,
      values: values.map((v) => all.indexOf(v)),
      tickvals: all.map((_, i) => i),
      ticktext: all.map((v) => plain(shorten(show(v), 20))),
      range: [-0.3, all.length - 0.7],
    };
  }
  if (!log) return { label, values: numbers, tickformat: tickformat(name) ?? "~g" };
  const logs = numbers.map(Math.log10),
    [low, high] = [Math.min(...logs), Math.max(...logs)];
  let inside = [];
  for (const steps of [[1], [1, 3], [1, 2, 5], [1, 2, 3, 4, 5, 6, 7, 8, 9]]) {
    // the fewest that leave three ticks
    const ticks = [];
    for (let power = Math.floor(low); power <= high; power += 1) ticks.push(...steps.map((s) => s * 10 ** power));
    inside = ticks.filter((t) => Math.log10(t) >= low - 1e-9 && Math.log10(t) <= high + 1e-9);
    if (inside.length >= 3) break;
  }
  return { label, values: logs, tickvals: inside.map(Math.log10), ticktext: inside.map(show) };
}

function importanceSection() {
  if (!DATA.studies.length && !DATA.effects.length) return;
  const grid = el("div", { class: "grid two" });
  const source = DATA.studies.length
    ? "What sets the best of the finished trials apart, as Optuna estimates it (PED-ANOVA); with few trials it is a guess."
    : "How far the means for the values of each key lie apart; other keys are averaged over.";
  section("importance", "What mattered", source, grid);
  for (const study of DATA.studies) {
    const several = DATA.studies.length > 1 ? `${study.name}: ` : "";
    if (study.importance.length) bars(grid, several + "importance of parameters", study.importance, "");
    if (study.history) optunaCard(grid, several + "course of the search", study.history);
  }
  if (!DATA.studies.length) bars(grid, "difference between the best and the worst value", DATA.effects, goal.metric);
}

function bars(grid, title, pairs, unit) {
  const node = el("div", { class: "plot" }),
    list = [...pairs].sort((a, b) => a[1] - b[1]);
  grid.append(el("div", { class: "card" }, el("h3", {}, title), node));
  plot(node, () => ({
    data: [
      {
        type: "bar",
        orientation: "h",
        x: list.map((p) => p[1]),
        y: list.map((_, i) => i),
        text: list.map((p) => showAs(unit, p[1])),
        textposition: "outside",
        cliponaxis: false,
        marker: { color: css("--accent") },
        hoverinfo: "skip",
      },
    ],
    layout: layout({
      xaxis: { title: { text: plain(unit) }, rangemode: "tozero", tickformat: tickformat(unit) },
      margin: { l: 44, r: 50, t: 8, b: 38 },
      yaxis: {
        tickvals: list.map((_, i) => i),
        ticktext: list.map((p) => plain(shorten(p[0], 24))),
        showgrid: false,
        nticks: null,
      },
    }),
  }));
}

/** A figure that Optuna made, in the colours of the page. */
function optunaCard(grid, title, figure) {
  const node = el("div", { class: "plot" });
  grid.append(el("div", { class: "card" }, el("h3", {}, title), node));
  const data = figure.data.map((trace, i) => ({
    ...trace,
    marker: { ...trace.marker, color: PALETTE[i] },
    line: { ...trace.line, color: PALETTE[i] },
  }));
  plot(node, () => ({
    data,
    layout: layout({
      showlegend: data.length > 1,
      legend: { orientation: "h", y: 1.02, yanchor: "bottom" },
      margin: { l: 44, r: 12, t: 30, b: 38 },
      xaxis: { title: { text: figure.x } },
      yaxis: { title: { text: figure.y }, tickformat: tickformat(goal.metric) },
    }),
  }));
}
