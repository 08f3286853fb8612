"use strict";
// Curves against step, tokens or seconds: the mean of a group's finished runs with a band, and the others as cut curves.
const PANELS = [
  ["reward/mean"],
  ["kl/mean"],
  ["length/mean"],
  ["reward/group_std", "reward/std"],
  [DATA.objective.metric, "eval/pass@1"],
];
const OTHERS = ["entropy/mean", "grad/norm", "format/rate", "eval/length", "loss/total"]; // fill what is left of six panels
const ENDS = { pruned: "x", failed: "x", stopped: "square", running: "circle-open" };
const T95 = [12.71, 4.3, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.2, 2.18, 2.16, 2.14, 2.13]; // Student's t, df 1 to 15
const CUT_CURVES = 60; // unfinished runs drawn in one panel
const curves = { axis: "step", band: "range", smooth: true };

/** A run's [x, y] of a metric, where both are known. */
function points(run, metric, axis) {
  const part = metric in run.train.m ? run.train : metric in run.eval.m ? run.eval : null;
  if (!part || !part[axis]) return [[], []];
  const x = [],
    y = [];
  part.m[metric].forEach((value, i) => {
    if (isNumber(value) && isNumber(part[axis][i])) {
      x.push(part[axis][i]);
      y.push(value);
    }
  });
  return [x, curves.smooth && part === run.train && y.length > 40 ? smoothed(y) : y];
}

function smoothed(values) {
  const half = Math.max(1, Math.round(values.length / 50));
  return values.map((_, i) => mean(values.slice(Math.max(0, i - half), i + half + 1)));
}

/** Linear interpolation at sorted places within the range of x. */
function interpolate(x, y, places) {
  let i = 0;
  return places.map((place) => {
    while (i < x.length - 2 && x[i + 1] < place) i += 1;
    if (x.length === 1 || x[i + 1] === x[i]) return y[i];
    return y[i] + ((y[i + 1] - y[i]) * (place - x[i])) / (x[i + 1] - x[i]);
  });
}

/** Mean and band over runs, where all of them have values: a run that drops out would make the mean jump. */
function band(runs, metric, axis) {
  const lines = runs.map((run) => points(run, metric, axis)).filter(([x]) => x.length > 0);
  if (!lines.length) return null;
  if (lines.length === 1) return { n: 1, x: lines[0][0], y: lines[0][1] };
  const from = Math.max(...lines.map(([x]) => x[0])),
    to = Math.min(...lines.map(([x]) => x[x.length - 1]));
  if (from > to) return null;
  let x = unique(lines.flatMap(([places]) => places))
    .filter((place) => place >= from && place <= to)
    .sort((a, b) => a - b);
  const most = 2 * Math.max(...lines.map(([places]) => places.length));
  if (x.length > most) x = Array.from({ length: most }, (_, i) => from + ((to - from) * i) / (most - 1));
  const rows = lines.map(([places, values]) => interpolate(places, values, x));
  const at = x.map((_, i) => rows.map((row) => row[i])),
    y = at.map(mean);
  const half = at.map((values, i) => {
    const variance = values.reduce((sum, v) => sum + (v - y[i]) ** 2, 0) / (values.length - 1);
    return (T95[values.length - 2] ?? 1.96) * Math.sqrt(variance / values.length);
  });
  const range = curves.band === "range";
  return {
    n: lines.length,
    x,
    y,
    low: at.map((v, i) => (range ? Math.min(...v) : y[i] - half[i])),
    high: at.map((v, i) => (range ? Math.max(...v) : y[i] + half[i])),
  };
}

function traces(metric) {
  const data = [],
    form = hoverformat(metric);
  let cut = 0;
  for (const group of view.shown()) {
    const name = plain(shorten(group.label, 70));
    const course = band(
      group.runs.filter((run) => run.status === "finished"),
      metric,
      curves.axis,
    );
    if (course) {
      if (course.low && curves.band !== "none") {
        const side = { x: course.x, mode: "lines", line: { width: 0 }, hoverinfo: "skip", type: "scatter" };
        data.push(
          { ...side, y: course.low },
          { ...side, y: course.high, fill: "tonexty", fillcolor: faded(group.colour, 0.16) },
        );
      }
      data.push({
        x: course.x,
        y: course.y,
        type: "scatter",
        mode: course.x.length < 25 ? "lines+markers" : "lines",
        line: { color: group.colour, width: 2 },
        marker: { size: 5 },
        hovertemplate: `${name}${course.n > 1 ? ` (mean of ${course.n})` : ""}<br>%{x:.4~g}: <b>%{y:${form}}</b><extra></extra>`,
      });
    }
    for (const run of group.runs.filter((other) => other.status !== "finished")) {
      const [x, y] = points(run, metric, curves.axis);
      if (!x.length || (cut += 1) > CUT_CURVES) continue;
      const sizes = x.map((_, i) => (i === x.length - 1 ? 8 : 0));
      data.push({
        x,
        y,
        type: "scatter",
        mode: "lines+markers",
        line: { color: faded(group.colour, 0.55), width: 1.2 },
        marker: {
          size: sizes,
          symbol: ENDS[run.status] ?? "x",
          color: group.colour,
          opacity: 1,
          line: { width: 1.5, color: group.colour },
        },
        hovertemplate: `${plain(shorten(run.label, 70))}, ${plain(run.status)}<br>%{x:.4~g}: <b>%{y:${form}}</b><extra></extra>`,
      });
    }
  }
  data.push(...marks(metric, form));
  return data;
}

/** Where health checks found that something began: a triangle on the run's own curve, or on the axis where it is averaged. */
function marks(metric, form) {
  const shown = new Set(view.shown().flatMap((group) => group.runs.map((run) => run.index)));
  return DATA.findings
    .filter((found) => found.metric === metric && shown.has(found.run))
    .map((found) => {
      const run = DATA.runs[found.run],
        [x, y] = points(run, metric, curves.axis),
        part = metric in run.train.m ? run.train : run.eval,
        at = part.step.findIndex((step) => step >= found.since),
        place = at < 0 ? null : part[curves.axis][at],
        i = x.findIndex((value) => value >= place);
      return {
        x: [place],
        y: [i < 0 ? null : y[i]],
        type: "scatter",
        mode: "markers",
        marker: { symbol: "triangle-down", size: 12, color: css("--bad"), line: { width: 1, color: css("--surface") } },
        hovertemplate: `${plain(found.title)}<br>${plain(shorten(found.label, 70))} from step ${found.since}<extra></extra>`,
      };
    });
}

function curvesSection() {
  if (!DATA.metrics.length) return;
  const first = (names) => names.find((name) => DATA.metrics.includes(name));
  const chosen = unique([...PANELS.map(first), ...DATA.findings.map((found) => first([found.metric])), ...OTHERS.map((name) => first([name]))].filter(Boolean)).slice(0, 6);
  if (!chosen.length) chosen.push(DATA.metrics[0]);
  const draws = [],
    grid = el("div", { class: "grid" }),
    chips = el("div", { class: "chips", role: "group", "aria-label": "Curves shown" });
  const redraw = () => draws.forEach((draw) => draw());
  const keys = DATA.varied.map((v) => [v.key, v.key]);
  if (DATA.configurations <= SEPARATE) keys.unshift(["configuration", "configuration"]);
  if (DATA.runs.length <= SEPARATE) keys.push(["run", "every run"]);
  const controls = el(
    "div",
    { class: "controls" },
    choice(
      "against",
      [
        ["step", "step"],
        ["tokens", "tokens generated"],
        ["seconds", "seconds"],
      ],
      curves.axis,
      (v) => {
        curves.axis = v;
        redraw();
      },
    ),
    DATA.runs.length > 1 ? choice("colour by", keys, view.key, (v) => view.regroup(v)) : null,
    DATA.runs.length > 1
      ? choice(
          "band",
          [
            ["range", "least to most"],
            ["interval", "95 % interval of the mean"],
            ["none", "none"],
          ],
          curves.band,
          (v) => {
            curves.band = v;
            redraw();
          },
        )
      : null,
    el(
      "label",
      {},
      el("input", {
        type: "checkbox",
        checked: "",
        onchange: (event) => {
          curves.smooth = event.target.checked;
          redraw();
        },
      }),
      "smoothed",
    ),
  );
  const note =
    DATA.runs.length > 1
      ? "The mean of the finished runs of each colour, as far as all of them go. Runs that are pruned, failed (×), " +
        "stopped (■) or running (○) are thin lines of their own." +
        (DATA.findings.length ? " A triangle (▼) is where health checks found that something began." : "")
      : DATA.findings.length
        ? "A triangle (▼) is where health checks found that something began."
        : null;
  section("curves", "Curves", note, controls, DATA.runs.length > 1 ? chips : null, grid);
  chosen.forEach((metric, i) => {
    const state = { metric },
      node = el("div", { class: "plot" });
    const menu = choice(
      `metric of panel ${i + 1}`,
      DATA.metrics.map((name) => [name, name]),
      metric,
      (v) => {
        state.metric = v;
        draw();
      },
      { class: "title" },
    );
    grid.append(el("div", { class: "card" }, menu, node));
    const draw = plot(node, () => ({
      data: traces(state.metric),
      layout: layout({
        xaxis: { title: { text: curves.axis }, rangemode: "tozero" },
        yaxis: { tickformat: tickformat(state.metric) },
      }),
    }));
    draws.push(draw);
  });
  view.listeners.push(() => {
    legend(chips);
    redraw();
  });
  legend(chips);
}

function legend(chips) {
  chips.replaceChildren(
    ...view.groups.map((group) => {
      const chip = el(
        "button",
        { class: "chip", "aria-pressed": String(!view.off.has(group.label)), title: group.label },
        el("i", { style: `background:${group.colour}` }),
        el("span", {}, `${group.label}${group.runs.length > 1 ? ` · ${group.runs.length} runs` : ""}`),
      );
      chip.addEventListener("click", () => {
        if (!view.off.delete(group.label)) view.off.add(group.label);
        view.changed();
      });
      return chip;
    }),
  );
  if (view.groups.length > 2) {
    chips.append(
      el(
        "button",
        {
          class: "chip",
          onclick: () => {
            view.off.clear();
            view.changed();
          },
        },
        "all",
      ),
      el(
        "button",
        {
          class: "chip",
          onclick: () => {
            view.groups.forEach((g) => view.off.add(g.label));
            view.changed();
          },
        },
        "none",
      ),
    );
  }
}
