"use strict";
// What all sections share: the data, small helpers, colours, grouping. Every text from outside reaches the page as a text
// node (`el`) or through `plain`, never as HTML.
const DATA = JSON.parse(document.getElementById("data").textContent);
const PALETTE = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8A63B0", "#8A8F98"];
const ORDERED = ["#2F6FDF", "#8A56D8", "#D0479B", "#EC6A4A", "#E8A020"];
const SEPARATE = 60; // runs or configurations up to which each may have its own colour
const BINS = 5; // groups that a number with many values is put into
const MANY = 8; // values of a number up to which each is a group
const TOUCH = matchMedia("(pointer: coarse)").matches; // a finger scrolls the page, so it does not zoom
const redraws = []; // functions that draw a plot anew, when the colours of the page change

function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined) node.setAttribute(key, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** Text as Plotly shows it literally: it takes some HTML for formatting. */
const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/\n/g, " ");
const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const unique = (values) => [...new Set(values)];
const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
const shorten = (text, most) => (text.length > most ? text.slice(0, most - 1) + "…" : text);

function show(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "boolean") return value ? "true" : "false";
  if (!isNumber(value)) return typeof value === "object" ? JSON.stringify(value) : String(value);
  const size = Math.abs(value);
  if (size >= 1e6) return (value / 1e6).toPrecision(3) + "M";
  if (size >= 1e4) return (value / 1e3).toPrecision(3) + "k";
  if (size !== 0 && size < 1e-3) return Number(value.toPrecision(3)).toExponential();
  return String(Number(value.toPrecision(size >= 1000 ? 4 : 3)));
}

const SHARES = new Set(DATA.shares);
/** A value of a metric: shares in percent. */
const showAs = (name, value) => (SHARES.has(name) && isNumber(value) ? `${(100 * value).toFixed(1)} %` : show(value));
const tickformat = (name) => (SHARES.has(name) ? ".0%" : null);
const hoverformat = (name) => (SHARES.has(name) ? ".1%" : ".4~g");

function duration(seconds) {
  if (!isNumber(seconds)) return "–";
  if (seconds < 100) return `${Number(seconds.toPrecision(2))} s`;
  return seconds < 6000 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toPrecision(2)} h`;
}

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const ordered = (share) => {
  const place = Math.min(0.9999, Math.max(0, share)) * (ORDERED.length - 1),
    i = Math.floor(place),
    part = place - i;
  const [a, b] = [ORDERED[i], ORDERED[i + 1]].map((c) => [1, 3, 5].map((k) => parseInt(c.slice(k, k + 2), 16)));
  return (
    "#" +
    a
      .map((v, k) =>
        Math.round(v + (b[k] - v) * part)
          .toString(16)
          .padStart(2, "0"),
      )
      .join("")
  );
};
const faded = (colour, alpha) => `rgba(${[1, 3, 5].map((k) => parseInt(colour.slice(k, k + 2), 16)).join(",")},${alpha})`;

function layout(more = {}) {
  const axis = {
    gridcolor: css("--grid"),
    zeroline: false,
    linecolor: css("--line"),
    tickcolor: css("--line"),
    automargin: true,
    title: { standoff: 8 },
    nticks: 6,
  };
  const { xaxis, yaxis, ...rest } = more;
  return {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    margin: { l: 44, r: 12, t: 8, b: 38 },
    showlegend: false,
    font: { family: "system-ui, sans-serif", size: 12, color: css("--quiet") },
    hovermode: "closest",
    dragmode: TOUCH ? false : "zoom",
    hoverlabel: {
      bgcolor: css("--surface"),
      bordercolor: css("--line"),
      font: { color: css("--ink"), size: 12 },
      namelength: -1,
    },
    xaxis: { ...axis, ...xaxis, title: { ...axis.title, ...xaxis?.title } },
    yaxis: { ...axis, ...yaxis, title: { ...axis.title, ...yaxis?.title } },
    ...rest,
  };
}

/** A plot that is drawn once the page stands, whenever it turns dark or light, and by the function that is returned. */
function plot(node, figure) {
  const draw = () => {
    const { data, layout: arranged } = figure();
    const bar = { displaylogo: false, displayModeBar: TOUCH ? false : "hover", modeBarButtons: [["toImage", "resetScale2d"]] };
    Plotly.react(node, data, arranged, { responsive: true, ...bar });
  };
  redraws.push(draw);
  return draw;
}

function section(id, title, note, ...children) {
  document.getElementById("nav").append(el("a", { href: "#" + id }, title));
  const node = el("section", { id }, el("h2", {}, title), note ? el("p", { class: "quiet" }, note) : null, ...children);
  document.getElementById("main").append(node);
  return node;
}

function choice(label, options, value, onchange, attributes = {}) {
  const menu = el("select", { "aria-label": label || "choice", onchange: () => onchange(menu.value), ...attributes });
  for (const [key, text] of options)
    menu.append(el("option", key === value ? { value: key, selected: "" } : { value: key }, shorten(text, 60)));
  return label && !attributes.class ? el("label", {}, label, menu) : menu;
}

/** The value of a run under a key that was varied. */
const valueOf = (run, key) => (key in run.params ? run.params[key] : null);
const configuration = (run) =>
  DATA.varied.map((v) => `${v.key}=${show(valueOf(run, v.key))}`).join(" ") ||
  (DATA.configurations === 1 && DATA.runs.length > 1 ? "all runs" : run.label);

/** A function run -> {order, label}: which group of `key` a run is in. A number of many values is cut at its quantiles. */
function grouping(key) {
  if (key === "run") return (run) => ({ order: run.index, label: run.label });
  if (key === "configuration") {
    const names = unique(DATA.runs.map(configuration));
    return (run) => ({ order: names.indexOf(configuration(run)), label: configuration(run) });
  }
  const values = unique(DATA.runs.map((run) => valueOf(run, key)).filter(isNumber)).sort((a, b) => a - b);
  const others = unique(DATA.runs.map((run) => show(valueOf(run, key)))).sort();
  const cut = values.length > MANY;
  const bin = (value) => Math.min(BINS - 1, Math.floor((values.indexOf(value) * BINS) / values.length));
  const label = (i) => {
    const inside = values.filter((value) => bin(value) === i);
    return unique([inside[0], inside[inside.length - 1]].map((v) => show(Number(v.toPrecision(2))))).join(" to ");
  };
  return (run) => {
    const value = valueOf(run, key);
    if (!isNumber(value)) return { order: 1e6 + others.indexOf(show(value)), label: show(value) };
    return cut ? { order: bin(value), label: label(bin(value)) } : { order: values.indexOf(value), label: show(value) };
  };
}

/** The groups of all runs under a key, in order, each with its colour: a scale for a number, a palette otherwise. */
function groupsOf(key) {
  const of = grouping(key),
    found = new Map();
  for (const run of DATA.runs) {
    const { order, label } = of(run);
    if (!found.has(order))
      found.set(order, { order, label: ["run", "configuration"].includes(key) ? label : `${key} ${label}`, runs: [] });
    found.get(order).runs.push(run);
  }
  const groups = [...found.values()].sort((a, b) => a.order - b.order);
  const scale = groups.length > PALETTE.length || DATA.varied.find((v) => v.key === key)?.kind === "number";
  groups.forEach((group, i) => {
    group.colour = scale ? ordered(groups.length > 1 ? i / (groups.length - 1) : 0) : PALETTE[i];
  });
  return groups;
}

// What the reader chose: how runs are grouped, which groups are off. Sections that colour by group listen.
const view = { key: null, groups: [], off: new Set(), listeners: [] };
view.regroup = (key) => {
  view.key = key;
  view.groups = groupsOf(key);
  view.off.clear();
  view.changed();
};
view.changed = () => view.listeners.forEach((listener) => listener());
view.shown = () => view.groups.filter((group) => !view.off.has(group.label));
