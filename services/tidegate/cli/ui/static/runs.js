// The list of runs, and runs beside each other.

import { ask, link, of, repeat } from "./asking.js";
import { chartsAreReady, drawLines, figure } from "./charts.js";
import { axisChoice, axisOf, inOrder, titleOf } from "./curves.js";
import { el, number, pill, refill, table, time } from "./elements.js";

const LIST_PERIOD_MS = 5000;

export function statePill(line) {
  if (line.problem) return pill("bad", "unreadable");
  if (line.state === "running") return pill("live", "running");
  if (line.state === "stopped") return pill("bad", "stopped");
  return pill(line.ended_by === "failed" ? "bad" : "quiet", `ended: ${line.ended_by}`);
}

export function auditPill(line) {
  return line.balanced === null ? null : pill(line.balanced ? "good" : "bad", line.balanced ? "balanced" : "NOT balanced");
}

export async function runs(show) {
  const chosen = new Set();
  const compare = el("button", { type: "button", disabled: true }, "Compare");
  compare.addEventListener("click", () => {
    location.hash = `#/compare?${new URLSearchParams([...chosen].map((name) => ["run", name]))}`;
  });
  function choose({ target }) {
    target.checked ? chosen.add(target.value) : chosen.delete(target.value);
    compare.disabled = chosen.size < 2;
  }
  const list = el("div");
  async function draw() {
    const lines = await ask("runs");
    refill(
      list,
      lines.length
        ? table(HEADS, lines.map((line) => rowOf(line, choose)))
        : el("p", { class: "lead" }, "There is no run here yet: `tidegate up RUN.yaml` starts one."),
    );
  }
  await draw();
  show(el("header", {}, el("h1", {}, "Runs"), compare, el("span", { class: "hint" }, "choose two or more to compare them")), list);
  return repeat(draw, LIST_PERIOD_MS);
}

const HEADS = ["", "run", "environment", "state", "#score", "#updates", "#steps", "#lag", "started"];

function rowOf(line, choose) {
  const box = { type: "checkbox", value: line.name, "aria-label": `compare ${line.name}`, on: { change: choose } };
  return {
    open: line.problem ? null : link(line.name),
    cells: [
      line.problem ? "" : el("input", box),
      line.problem ? line.name : el("a", { href: link(line.name) }, line.run_id || line.name),
      line.problem ? el("span", { class: "problem" }, line.problem) : line.env,
      [statePill(line), " ", auditPill(line)],
      line.score === null ? "–" : `${number(line.score, 4)} ${line.score_name.replace("mean_", "")}`,
      number(line.step),
      number(line.env_steps),
      line.lag_max === null ? "–" : `${line.lag_max} of ${line.max_lag}`,
      time(line.started_at_s),
    ],
  };
}

export async function compare(show, names) {
  const [answers] = await Promise.all([Promise.all(names.map((name) => ask(of(name, "/curves")))), chartsAreReady()]);
  const shared = inOrder(Object.keys(answers[0].curves)).filter((name) => answers.every((answer) => name in answer.curves));
  const plots = el("div", { class: "plots" });
  const over = axisChoice(() => draw());
  const none = shared.length ? null : el("p", { class: "lead" }, "These runs have no curve in common: one of them trained nothing yet.");
  show(el("header", {}, el("h1", {}, "Comparison"), over), none, plots);
  const charts = shared.map((name) => [name, figure(titleOf(name), answers[0].meanings[name] ?? "")]);
  plots.append(...charts.map(([, each]) => each.figure));
  function draw() {
    const { xLabel, valuesOf } = axisOf(over.value, answers.flatMap((answer) => Object.values(answer.curves)));
    for (const [name, { chart }] of charts) {
      const lines = answers.map((answer, index) => ({
        name: names[index],
        x: valuesOf(answer.curves[name]),
        y: answer.curves[name].value,
      }));
      drawLines(chart, lines, { xLabel });
    }
  }
  draw();
}
