// What the pages with curves share: names, order, and the horizontal axis.

import { timeUnit } from "./charts.js";
import { el } from "./elements.js";

const AXES = { at_s: "time since the first update", env_steps: "steps trained", step: "updates" };

export function axisChoice(changed) {
  const options = Object.entries(AXES).map(([value, text]) => el("option", { value }, text));
  return el("select", { "aria-label": "horizontal axis", on: { change: changed } }, options);
}

/** The horizontal axis of `name` for these curves: its label, and the values of one of them on it. */
export function axisOf(name, curves) {
  if (name !== "at_s") return { xLabel: AXES[name], valuesOf: (curve) => curve[name] };
  const { by, name: unit } = timeUnit(Math.max(0, ...curves.map((curve) => curve.at_s.at(-1) ?? 0)));
  return { xLabel: `${unit} since the first update`, valuesOf: (curve) => curve.at_s.map((at_s) => at_s / by) };
}

/** `wait_s` as "wait (s)". */
export function titleOf(name) {
  const unit = /_(s|ms|bytes)$/.exec(name);
  const words = name.slice(0, unit?.index).replaceAll("_", " ");
  return unit ? `${words} (${unit[1]})` : words;
}

// What a person looks for: whether it learns, and how old its data is.
const FIRST = ["mean_return", "mean_reward", "lag_max", "lag_mean"];

/** Scores and lag, then what tells of learning, then what tells of time. */
export function inOrder(names) {
  const isTime = (name) => name.endsWith("_s") || name === "samples";
  const rest = names.filter((name) => !FIRST.includes(name));
  return [...FIRST.filter((name) => names.includes(name)), ...rest.filter((name) => !isTime(name)), ...rest.filter(isTime)];
}
