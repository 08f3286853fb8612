"use strict";
// Quality against what it costs: KL, tokens, seconds.
function frontierSection() {
  const costs = [kl, "tokens", "seconds"].filter((name) => name && measured(name).length);
  if (measured(goal.metric).length < 2 || !costs.length) return;
  const grid = el("div", { class: "grid" }),
    state = { quality: goal.metric },
    draws = [];
  const qualities = measures().filter((name) => name === goal.metric || /^(reward.mean|eval.pass@1)$/.test(name));
  const menu =
    qualities.length < 2
      ? null
      : el(
          "div",
          { class: "controls" },
          choice(
            "quality",
            qualities.map((q) => [q, q]),
            goal.metric,
            (value) => {
              state.quality = value;
              draws.forEach((draw) => draw());
            },
          ),
        );
  section(
    "frontier",
    "Quality against its price",
    "Each point is a run; on the line are those that no other run beats at a lower price.",
    menu,
    grid,
  );
  for (const cost of costs) {
    const node = el("div", { class: "plot" }),
      title = { tokens: "tokens generated", seconds: "seconds" }[cost] ?? `KL (${cost})`;
    grid.append(el("div", { class: "card" }, el("h3", {}, `against ${title}`), node));
    draws.push(plot(node, () => frontier(cost, state.quality)));
  }
  view.listeners.push(...draws);
}

function frontier(cost, measure) {
  const [price, quality] = [MEASURES.get(cost), MEASURES.get(measure)],
    data = [];
  const sign = measure === goal.metric && !goal.maximize ? -1 : 1;
  const known = measured(cost).filter((run) => isNumber(quality(run)));
  const shown = new Set(view.shown().flatMap((group) => group.runs));
  const edge = [];
  for (const run of known
    .filter((r) => shown.has(r) && r.status === "finished")
    .sort((a, b) => price(a) - price(b) || sign * (quality(b) - quality(a)))) {
    if (!edge.length || sign * quality(run) > sign * quality(edge[edge.length - 1])) edge.push(run);
  }
  data.push({
    x: edge.map(price),
    y: edge.map(quality),
    mode: "lines",
    line: { color: css("--quiet"), width: 1.2, shape: "hv", dash: "dot" },
    hoverinfo: "skip",
  });
  for (const group of view.shown()) {
    const runs = group.runs.filter((run) => known.includes(run));
    data.push({
      x: runs.map(price),
      y: runs.map(quality),
      mode: "markers",
      type: "scatter",
      text: runs.map((run) => `${plain(run.label)}<br>${plain(shorten(configuration(run), 80))}`),
      marker: {
        color: group.colour,
        size: 9,
        opacity: 0.9,
        symbol: runs.map((run) => ENDS[run.status] ?? "circle"),
        line: { width: 1, color: css("--surface") },
      },
      hovertemplate: `%{text}<br>${plain(measure)} <b>%{y:${hoverformat(measure)}}</b>, ${plain(cost)} %{x:.4~s}<extra></extra>`,
    });
  }
  return {
    data,
    layout: layout({
      xaxis: { title: { text: plain(cost) }, rangemode: "tozero" },
      yaxis: { title: { text: plain(measure) }, tickformat: tickformat(measure) },
    }),
  };
}
