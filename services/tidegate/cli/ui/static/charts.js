// Charts. Texts of a run are escaped: Plotly reads some markup in its texts, links among it.

import { el } from "./elements.js";

const SERIES = 8;
const CONFIG = { displayModeBar: false, responsive: true };
let loading = null;

/** Plotly, asked for by the first page that draws: it is 4.5 MB, and lists and texts need none of it. */
export function chartsAreReady() {
  loading ??= new Promise((resolve, reject) => {
    const failed = () => {
      loading = null;
      reject(new Error("The server did not send the charts' library: reload the page."));
    };
    document.head.append(el("script", { src: "/static/plotly.js", on: { load: resolve, error: failed } }));
  });
  return loading;
}

/** Frees the charts below an element: until then Plotly listens to the window's size for each of them. */
export function releaseCharts(element) {
  for (const chart of element.querySelectorAll(".js-plotly-plot")) window.Plotly.purge(chart);
}

const plain = (text) => text.replace(/[&<>]/g, (mark) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;" })[mark]);

/** Seconds in a unit that suits the longest of them. */
export function timeUnit(longest_s) {
  if (longest_s >= 3 * 3600) return { by: 3600, name: "hours" };
  return longest_s >= 600 ? { by: 60, name: "minutes" } : { by: 1, name: "seconds" };
}

function palette() {
  const style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue(name).trim();
  return {
    ink: color("--muted"),
    grid: color("--grid"),
    limit: color("--limit"),
    card: color("--card"),
    line: color("--line"),
    series: Array.from({ length: SERIES }, (_, index) => color(`--series-${index}`)),
  };
}

/** An empty figure, and the element into which `draw` puts its chart. */
export function figure(title, caption) {
  const chart = el("div", { class: "chart" });
  const head = el("figcaption", {}, el("h2", {}, title), el("p", {}, caption));
  return { figure: el("figure", {}, head, chart), chart };
}

function layout(colors, { xLabel = "", legend = true, percent = false } = {}) {
  const axis = { gridcolor: colors.grid, zeroline: false, linecolor: colors.grid, automargin: true };
  return {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: colors.ink, size: 12, family: getComputedStyle(document.body).fontFamily },
    margin: { l: 46, r: 12, t: 8, b: 38 },
    xaxis: { ...axis, title: { text: xLabel } },
    yaxis: { ...axis, rangemode: "tozero", tickformat: percent ? ".0%" : "" },
    showlegend: legend,
    legend: { orientation: "h", y: 1.14 },
    hovermode: "x unified",
    hoverlabel: { bgcolor: colors.card, bordercolor: colors.line },
    // What a person zoomed into stays while a live run adds points; another axis is drawn whole.
    uirevision: xLabel,
  };
}

/** Lines, each {name, x, y, points?, width?}; `limit`: a dashed line at a height. */
export function drawLines(chart, lines, { xLabel, limit = null, percent = false } = {}) {
  const colors = palette();
  const traces = lines.map((line, index) => ({
    type: "scatter",
    mode: line.points ? "markers" : "lines",
    name: plain(line.name),
    x: line.x,
    y: line.y,
    line: { color: colors.series[index % SERIES], width: line.width ?? 1.6, shape: line.steps ? "hv" : "linear" },
    marker: { color: colors.series[index % SERIES], size: 7 },
  }));
  const shape = layout(colors, { xLabel, legend: lines.length > 1, percent });
  if (limit !== null) {
    shape.shapes = [
      { type: "line", xref: "paper", x0: 0, x1: 1, y0: limit, y1: limit, line: { color: colors.limit, dash: "dash" } },
    ];
    shape.annotations = [
      { xref: "paper", x: 1, y: limit, yanchor: "bottom", xanchor: "right", showarrow: false, text: `max_lag ${limit}` },
    ];
  }
  window.Plotly.react(chart, traces, shape, CONFIG);
}

/** Areas on top of each other, each {name, x, y}. */
export function drawAreas(chart, areas, { xLabel } = {}) {
  const colors = palette();
  const traces = areas.map((area, index) => ({
    type: "scatter",
    mode: "lines",
    stackgroup: "all",
    name: plain(area.name),
    x: area.x,
    y: area.y,
    line: { width: 0, color: colors.series[index % SERIES] },
  }));
  window.Plotly.react(chart, traces, layout(colors, { xLabel }), CONFIG);
}

/** Flows of trajectories from `admitted` to where they are, as [name, count]. */
export function drawFlow(chart, ends) {
  const colors = palette();
  const labels = ["admitted", ...ends.map(([name, count]) => `${plain(name)}: ${count.toLocaleString("en")}`)];
  const trace = {
    type: "sankey",
    node: { label: labels, color: [colors.ink, ...ends.map((_, index) => colors.series[index % SERIES])], pad: 14 },
    link: {
      source: ends.map(() => 0),
      target: ends.map((_, index) => index + 1),
      value: ends.map(([, count]) => count),
      color: colors.grid,
    },
  };
  window.Plotly.react(chart, [trace], { ...layout(colors, {}), hovermode: "closest" }, CONFIG);
}
