// Elements and charts. All text enters the page as text, never as markup.

/** An element with attributes and children; a child that is no element becomes text, and null is left out. */
export function el(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "on") for (const [event, act] of Object.entries(value)) element.addEventListener(event, act);
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  return fill(element, ...children);
}

/** The element with these children instead of its own. */
export function fill(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

/** 1,234 or 0.0123: at most `digits` significant ones below a thousand; a dash for nothing. */
export function number(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (Math.abs(value) >= 1000) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(digits)));
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (Math.abs(value) < 1) return `${(1000 * value).toFixed(1)} ms`;
  if (value < 120) return `${value.toFixed(1)} s`;
  return value < 7200 ? `${(value / 60).toFixed(1)} min` : `${(value / 3600).toFixed(1)} h`;
}

export function time(at_s) {
  return at_s ? new Date(1000 * at_s).toLocaleString("en-GB") : "–";
}

const SERIES = 8;

function palette() {
  const style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue(name).trim();
  return {
    ink: color("--muted"),
    grid: color("--grid"),
    limit: color("--limit"),
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
    font: { color: colors.ink, size: 12 },
    margin: { l: 46, r: 12, t: 8, b: 38 },
    xaxis: { ...axis, title: { text: xLabel } },
    yaxis: { ...axis, rangemode: "tozero", tickformat: percent ? ".0%" : "" },
    showlegend: legend,
    legend: { orientation: "h", y: 1.14 },
    hovermode: "x unified",
  };
}

const CONFIG = { displayModeBar: false, responsive: true };

/** Lines, each {name, x, y, points?, width?}; `limit`: a dashed line at a height. */
export function drawLines(chart, lines, { xLabel, limit = null, percent = false } = {}) {
  const colors = palette();
  const traces = lines.map((line, index) => ({
    type: "scatter",
    mode: line.points ? "markers" : "lines",
    name: line.name,
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
    name: area.name,
    x: area.x,
    y: area.y,
    line: { width: 0, color: colors.series[index % SERIES] },
  }));
  window.Plotly.react(chart, traces, layout(colors, { xLabel }), CONFIG);
}

/** Flows of trajectories from `admitted` to where they are, as [name, count]. */
export function drawFlow(chart, ends) {
  const colors = palette();
  const labels = ["admitted", ...ends.map(([name, count]) => `${name}: ${count.toLocaleString("en")}`)];
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

/** A table; rows are {cells, open?}, where `open` is the address that the row leads to, and its first text. */
export function table(heads, rows) {
  const head = heads.map((name) => {
    const isNumber = name.startsWith("#");
    return el("th", { class: isNumber && "number" }, isNumber ? name.slice(1) : name);
  });
  const body = rows.map(({ cells, open }) =>
    el(
      "tr",
      {
        "data-open": open,
        tabindex: open ? -1 : null, // for the keys j and k; the tabulator key goes to the link
        on: open ? { click: (event) => event.target.closest("a, input") || (location.hash = open) } : {},
      },
      cells.map((cell, index) => {
        const leads = open && index === 0 && typeof cell === "string";
        return el("td", { class: heads[index].startsWith("#") && "number" }, leads ? el("a", { href: open }, cell) : cell);
      }),
    ),
  );
  return el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, head)), el("tbody", {}, body)));
}
