// Tables of trajectories and of updates.

import { ask, link, of } from "./asking.js";
import { el, number, seconds, table, time } from "./elements.js";

const STATES = ["trained", "dropped", "available", "leased"];
const REASONS = ["stale", "expired", "invalid", "failed", "superseded", "settled", "retired", "unsampled", "poisoned"];
const FILTERS = [
  ["state", "state", STATES],
  ["reason", "dropped because", REASONS],
  ["curriculum_bin", "curriculum bin", "text"],
  ["reward_min", "reward from", "number"],
  ["reward_max", "reward to", "number"],
  ["lag_min", "lag from", "number"],
  ["tokens_min", "tokens from", "number"],
  ["trained_step", "trained from step", "number"],
];

function filterForm(query, apply) {
  const fields = FILTERS.map(([name, text, kind]) => {
    const value = query.get(name) ?? "";
    const options = Array.isArray(kind) ? ["", ...kind].map((each) => el("option", { value: each, selected: each === value }, each)) : null;
    const field = options ? el("select", { name }, options) : el("input", { name, type: kind, step: "any", value });
    return el("label", {}, text, field);
  });
  const form = el("form", { class: "filter" }, fields, el("button", { type: "submit" }, "Filter"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    apply(new URLSearchParams([...new FormData(form)].filter(([, value]) => value !== "")));
  });
  return form;
}

function pages(newer, older) {
  const button = (name, key, address) => (address ? el("a", { href: address, "data-key": key }, name) : null);
  return el("div", { class: "pages" }, button("← newest", "p", newer), button("older →", "n", older));
}

export async function trajectories(show, run, query) {
  const rows = await ask(of(run, `/trajectories?${query}`));
  const here = link(run, "/trajectories");
  const lines = rows.map((row) => ({
    open: link(run, `/trajectory/${encodeURIComponent(row.trajectory_id)}`),
    cells: [
      row.trajectory_id,
      row.state + (row.reason ? `: ${row.reason}` : ""),
      number(row.reward ?? row.mean_return, 4),
      number(row.length_tokens || row.num_steps),
      row.lag === null ? "–" : row.lag,
      seconds(row.age_s),
      row.trained_at ?? "–",
      row.curriculum_bin,
      time(row.started_at_s),
    ],
  }));
  const older = new URLSearchParams(query);
  if (rows.length) older.set("before", rows.at(-1).seq);
  const newest = new URLSearchParams(query);
  newest.delete("before");
  const heads = ["trajectory", "state", "#reward or return", "#tokens or steps", "#lag", "#age", "trained from", "bin", "started"];
  show(
    el("header", {}, el("h1", {}, "Trajectories"), el("span", { class: "brand" }, run)),
    filterForm(query, (wanted) => (location.hash = `${here}?${wanted}`)),
    rows.length ? table(heads, lines) : el("p", { class: "lead" }, "No trajectory fits the filter."),
    pages(query.has("before") ? `${here}?${newest}` : null, rows.length === 100 ? `${here}?${older}` : null),
  );
}

export async function versions(show, run, query) {
  const [updates, moment] = await Promise.all([ask(of(run, `/versions?${query}`)), ask(of(run, "/moment"))]);
  const here = link(run, "/versions");
  const rows = updates.map((update) => ({
    open: link(run, `/trajectories?trained_step=${update.step}`),
    cells: [
      update.from_version,
      number(update.step + 1),
      number(update.num_trajectories),
      number(update.num_steps),
      number(update.mean_reward, 4),
      update.max_lag,
      moment.serving_step === update.step + 1 ? "served by actors" : "",
    ],
  }));
  const heads = ["trained from", "#makes step", "#trajectories", "#tokens or steps", "#mean reward", "#max lag", ""];
  const older = updates.length === 100 ? `${here}?before=${updates.at(-1).step}` : null;
  show(
    el("header", {}, el("h1", {}, "Versions"), el("span", { class: "brand" }, run)),
    rows.length ? table(heads, rows) : el("p", { class: "lead" }, "Nothing was trained yet."),
    pages(query.has("before") ? here : null, older),
  );
}
