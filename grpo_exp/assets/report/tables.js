"use strict";
// The head, the ranked table, what did not finish, samples and configurations: text and numbers.
function copyButton(text) {
  const button = el("button", { type: "button" }, "copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "copied";
    } catch {
      getSelection().selectAllChildren(button.previousSibling);
    }
  });
  return button;
}

function head() {
  document.getElementById("title").textContent = DATA.title;
  const counts = new Map();
  DATA.runs.forEach((run) => counts.set(run.status, (counts.get(run.status) ?? 0) + 1));
  const several = DATA.runs.length === 1 ? "1 run" : `${DATA.runs.length} runs`;
  document.getElementById("subtitle").textContent =
    `${several}: ${[...counts].map(([status, n]) => `${n} ${status}`).join(", ")} · ${DATA.made}`;
  const best = DATA.table[0],
    cards = [];
  if (best && isNumber(best.value)) {
    const facts = [
      ["95 % interval", interval(best)],
      ["seeds", best.runs],
      [kl ?? "KL", show(best.kl)],
      ["length", show(best.length)],
      ["tokens", show(best.tokens)],
      ["time", duration(best.seconds)],
    ];
    cards.push(
      el(
        "div",
        { class: "card" },
        el("h3", {}, DATA.table.length > 1 ? "Best" : "Result"),
        el("div", { class: "big" }, showAs(goal.metric, best.value)),
        el("p", { class: "quiet" }, `${goal.metric}${goal.maximize ? "" : ", lower is better"}`),
        el("p", {}, el("b", {}, best.label)),
        el(
          "dl",
          { class: "facts two" },
          ...facts
            .filter(([, v]) => v && v !== "–")
            .map(([name, v]) => el("div", {}, el("dt", {}, name), el("dd", {}, String(v)))),
        ),
      ),
    );
  }
  if (DATA.varied.length) {
    cards.push(
      el(
        "div",
        { class: "card" },
        el("h3", {}, "What was varied"),
        el("dl", { class: "facts" }, ...DATA.varied.flatMap((v) => [el("dt", {}, v.key), el("dd", {}, spread(v))])),
      ),
    );
  }
  const words = DATA.sentences.length
    ? el("ul", { class: "verdicts" }, ...DATA.sentences.map((text) => el("li", {}, text)))
    : null;
  const command = DATA.command ? el("div", { class: "command" }, el("pre", {}, DATA.command), copyButton(DATA.command)) : null;
  const main = document.getElementById("main");
  if (words)
    main.append(
      el("div", { class: "card", id: "verdict", style: "margin-top:.8rem" }, el("h3", {}, "What it says"), words, command),
    );
  if (cards.length) main.append(el("div", { class: "grid two" }, ...cards));
  if (!words && command)
    main.append(el("div", { class: "card", style: "margin-top:.8rem" }, el("h3", {}, "The best again"), command));
}

const interval = (row) => (isNumber(row.low) ? `${showAs(goal.metric, row.low)} to ${showAs(goal.metric, row.high)}` : null);

function spread({ values, kind }) {
  if (kind === "number" && values.length > MANY)
    return `${values.length} values from ${show(values[0])} to ${show(values[values.length - 1])}`;
  return shorten(values.map(show).join(", "), 300);
}

/** A table that is sorted by a click on a heading. Columns: {name, value(row), text?(value), number?}. */
function sortable(columns, rows, mark = () => null) {
  const body = el("tbody"),
    heads = [];
  for (const column of columns) column.number = !column.long && rows.some((row) => isNumber(column.value(row)));
  const fill = (list) =>
    body.replaceChildren(
      ...list.map((row) =>
        el(
          "tr",
          { class: mark(row) },
          ...columns.map((column) => {
            const value = column.value(row);
            if (column.status)
              return el("td", {}, el("span", { class: `status ${String(value).split(" ")[0]}` }, String(value)));
            return el(
              "td",
              { class: column.long ? "text" : column.number ? "number" : null },
              (column.text ?? show)(value, row),
            );
          }),
        ),
      ),
    );
  columns.forEach((column, i) => {
    let up = true;
    heads.push(
      el(
        "th",
        { class: column.number ? "number" : null, "aria-sort": "none" },
        el(
          "button",
          {
            type: "button",
            onclick: () => {
              const value = (row) => column.value(row) ?? null;
              const sorted = [...rows].sort((a, b) => {
                const [p, q] = [value(a), value(b)];
                if (p === null || q === null) return (p === null) - (q === null);
                return (
                  (isNumber(p) && isNumber(q) ? p - q : String(p).localeCompare(String(q), "en", { numeric: true })) *
                  (up ? 1 : -1)
                );
              });
              heads.forEach((h, k) => h.setAttribute("aria-sort", k === i ? (up ? "ascending" : "descending") : "none"));
              up = !up;
              fill(sorted);
            },
          },
          column.name,
        ),
      ),
    );
  });
  fill(rows);
  return el("div", { class: "card wide" }, el("table", {}, el("thead", {}, el("tr", {}, ...heads)), body));
}

function tableSection() {
  if (DATA.table.length < 2) return; // one is shown at the top
  const columns = [
    { name: "rank", value: (row) => row.rank },
    ...(DATA.varied.length
      ? DATA.varied.map((v) => ({ name: v.key, value: (row) => row.values[v.key] ?? null }))
      : [{ name: "run", value: (row) => row.label }]),
    { name: goal.metric, value: (row) => row.value, text: (value) => showAs(goal.metric, value) },
    { name: "95 % interval", value: (row) => row.low, text: (_, row) => interval(row) ?? "–" },
    { name: "against the best", value: (row) => row.verdict },
    { name: "runs", value: (row) => row.runs },
    { name: "KL", value: (row) => row.kl },
    { name: "length", value: (row) => row.length },
    { name: "tokens", value: (row) => row.tokens },
    { name: "time", value: (row) => row.seconds, text: duration },
    { name: "status", value: (row) => row.status, status: true },
  ].filter((column) => column.name === "rank" || DATA.table.some((row) => ![null, undefined, ""].includes(column.value(row))));
  section(
    "table",
    "All, ranked",
    "Means over the runs of a row; KL and length over the last ten steps. A click on a heading sorts.",
    sortable(columns, DATA.table, (row) => (row.rank === 1 && DATA.table.length > 1 ? "best" : null)),
  );
}

function failuresSection() {
  const rows = DATA.runs.filter((run) => run.status !== "finished");
  if (!rows.length) return;
  section(
    "unfinished",
    "Not finished",
    null,
    sortable(
      [
        { name: "run", value: (run) => run.label },
        { name: "status", value: (run) => run.status, status: true },
        { name: "steps", value: (run) => run.steps },
        { name: "reason", value: (run) => run.reason ?? "", long: true },
        { name: "configuration", value: configuration, long: true },
      ],
      rows,
    ),
  );
}

function healthSection() {
  if (!DATA.findings.length) return;
  section(
    "health",
    "Found by health checks",
    "What went wrong and since when, in every run that it was found in; health.jsonl in its folder has the samples.",
    sortable(
      [
        { name: "run", value: (found) => found.label },
        { name: "since step", value: (found) => found.since },
        { name: "found at", value: (found) => found.step },
        { name: "what", value: (found) => found.title },
        { name: "evidence and cause", value: (found) => found.text, long: true },
        { name: "to try", value: (found) => found.tries, long: true },
      ],
      DATA.findings,
    ),
  );
}

function samplesSection() {
  if (!DATA.samples.length) return;
  const cards = DATA.samples.map((side) =>
    el(
      "div",
      { class: "card" },
      el("h3", {}, side.title),
      el("p", { class: "quiet" }, side.note),
      ...side.rows.map((row) =>
        el(
          "div",
          { class: "sample" },
          el(
            "div",
            {},
            row.right === null ? null : el("b", { class: row.right ? "right" : "wrong" }, row.right ? "✓ right " : "✗ wrong "),
            el(
              "span",
              { class: "quiet" },
              [
                isNumber(row.reward) ? `reward ${show(row.reward)}` : null,
                isNumber(row.length) ? `${row.length} tokens` : null,
                row.finished === false ? "cut off" : null,
                row.reference ? `reference ${row.reference}` : null,
              ]
                .filter(Boolean)
                .join(" · "),
            ),
          ),
          el("pre", { class: "prompt" }, row.prompt),
          el("pre", {}, row.completion),
        ),
      ),
    ),
  );
  section(
    "samples",
    "Samples",
    "What was written at the end of training, for the same prompts where there are any.",
    el("div", { class: "grid two" }, ...cards),
  );
}

function differencesSection() {
  if (!DATA.differences.length) return;
  const note = "Every key that differs, also those that follow from others.";
  section(
    "configs",
    "Configurations",
    note,
    sortable(
      [
        { name: "key", value: (row) => row.key },
        { name: "values", value: (row) => row.count },
        { name: "value (runs)", value: (row) => row.values.map(([value, n]) => `${value} (${n})`).join(" · "), long: true },
      ],
      DATA.differences,
    ),
  );
}
