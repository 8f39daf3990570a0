// One function a page: it asks the server, shows the page, and returns what to stop when another page opens.

import { drawAreas, drawFlow, drawLines, el, figure, fill, number, seconds, table, time } from "./drawing.js";

const CURVES_PERIOD_MS = 3000;
const STEPS = { at_s: "seconds since the first update", env_steps: "steps trained", step: "updates" };
const STATES = ["trained", "dropped", "available", "leased"];
const REASONS = ["stale", "expired", "invalid", "failed", "superseded", "settled", "retired", "unsampled", "poisoned"];

export async function ask(path) {
  const answer = await fetch(`/api/${path}`);
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.error);
  return body;
}

const of = (run, rest = "") => `runs/${encodeURIComponent(run)}${rest}`;
const link = (run, rest = "") => `#/run/${encodeURIComponent(run)}${rest}`;
const pill = (kind, text) => el("span", { class: `pill ${kind}` }, text);

function statePill(line) {
  if (line.problem) return pill("bad", "unreadable");
  if (line.state === "running") return pill("live", "running");
  return pill(line.state === "ended" ? "quiet" : "bad", line.state === "ended" ? `ended: ${line.ended_by}` : "stopped");
}

function auditPill(line) {
  return line.balanced === null ? null : pill(line.balanced ? "good" : "bad", line.balanced ? "balanced" : "NOT balanced");
}

export async function runs(show) {
  const lines = await ask("runs");
  const compare = el("button", { type: "button", disabled: true }, "Compare");
  const chosen = new Set();
  const choose = (name) => (event) => {
    event.target.checked ? chosen.add(name) : chosen.delete(name);
    compare.disabled = chosen.size < 2;
  };
  compare.addEventListener("click", () => {
    location.hash = `#/compare?${new URLSearchParams([...chosen].map((name) => ["run", name]))}`;
  });
  const rows = lines.map((line) => ({
    open: line.problem ? null : link(line.name),
    cells: [
      el("input", { type: "checkbox", "aria-label": `compare ${line.name}`, on: { change: choose(line.name) } }),
      line.problem ? el("span", {}, line.name) : el("a", { href: link(line.name) }, line.run_id || line.name),
      line.problem ? line.problem : line.env,
      [statePill(line), " ", auditPill(line)],
      line.score === null ? "–" : `${number(line.score, 4)} ${line.score_name.replace("mean_", "")}`,
      number(line.step),
      number(line.env_steps),
      line.lag_max === null ? "–" : `${line.lag_max} of ${line.max_lag}`,
      time(line.started_at_s),
    ],
  }));
  show(
    el("header", {}, el("h1", {}, "Runs"), compare),
    lines.length
      ? table(["", "run", "environment", "state", "#score", "#updates", "#steps", "#lag", "started"], rows)
      : el("p", { class: "lead" }, "There is no run here yet: `tidegate up RUN.yaml` starts one."),
  );
}

export async function compare(show, names) {
  const answers = await Promise.all(names.map((name) => ask(of(name, "/curves"))));
  const shared = inOrder(Object.keys(answers[0].curves)).filter((name) => answers.every((answer) => name in answer.curves));
  const plots = el("div", { class: "plots" });
  const over = axisChoice(() => draw());
  const none = shared.length ? null : el("p", { class: "lead" }, "These runs have no curve in common: one of them trained nothing yet.");
  show(el("header", {}, el("h1", {}, "Comparison"), over), none, plots);
  const charts = shared.map((name) => [name, figure(name.replaceAll("_", " "), answers[0].meanings[name] ?? "")]);
  plots.append(...charts.map(([, each]) => each.figure));
  function draw() {
    for (const [name, { chart }] of charts) {
      const lines = answers.map((answer, index) => ({
        name: names[index],
        x: answer.curves[name][over.value],
        y: answer.curves[name].value,
      }));
      drawLines(chart, lines, { xLabel: STEPS[over.value] });
    }
  }
  draw();
}

function axisChoice(changed) {
  const options = Object.entries(STEPS).map(([value, text]) => el("option", { value }, text));
  return el("select", { "aria-label": "horizontal axis", on: { change: changed } }, options);
}

function headline(facts) {
  const { line } = facts;
  return [
    el("header", {}, el("h1", {}, line.run_id), statePill(line), auditPill(line)),
    el(
      "p",
      { class: "lead" },
      `${line.env} · max_lag ${line.max_lag} · batch ${facts.batch_size} · max_running ${facts.max_running}` +
        (facts.target ? ` · target ${facts.target}` : "") +
        (facts.forked_from ? ` · forked from ${facts.forked_from}` : ""),
    ),
  ];
}

function cardsOf(line, moment) {
  const card = (value, what, more) =>
    el("div", { class: "card" }, el("b", {}, value), el("span", {}, what), el("i", {}, more ?? ""));
  const signals = moment.signals;
  return [
    card(number(line.score, 4), line.score_name.replaceAll("_", " ") || "score", `${number(line.step)} updates`),
    card(number(line.env_steps), "steps trained", `${number(signals.actor_steps_per_s)} generated per second`),
    card(
      line.lag_max === null ? "–" : `${line.lag_max} of ${moment.max_lag ?? line.max_lag}`,
      "largest lag, versions",
      `mean ${number(signals.lag_mean)}`,
    ),
    card(number(signals.in_flight), "trajectories in flight", `${number(signals.running)} running, ${number(signals.available)} stored`),
    card(
      signals.learner_idle_ratio === undefined ? "–" : `${Math.round(100 * signals.learner_idle_ratio)} %`,
      "learner waits",
      `actors busy ${Math.round(100 * (signals.actor_busy_ratio ?? 0))} %${
        signals.learner_gpu_busy_ratio === undefined ? "" : `, its GPUs ${Math.round(100 * signals.learner_gpu_busy_ratio)} %`
      }`,
    ),
  ];
}

function diagnosis(moment) {
  if (!moment.sentence) return el("div", { class: "note" }, el("p", {}, "Admission has written no sample yet."));
  const problems = moment.problems.map((problem) => el("p", {}, problem));
  return el(
    "div",
    { class: `note${problems.length ? " bad" : ""}` },
    el("p", {}, el("b", {}, `Bottleneck: ${moment.bottleneck}. `), moment.sentence),
    el("p", {}, el("b", {}, "Fix: "), moment.fix || "nothing to fix"),
    problems,
  );
}

function objectives(moment) {
  const rows = moment.objectives.map((each) => {
    const left = Math.max(0, Math.min(1, each.budget_left));
    const bar = el("i");
    bar.style.width = `${100 * left}%`;
    return {
      cells: [
        each.name.replaceAll("_", " "),
        each.objective,
        number(each.value),
        [el("span", { class: `meter ${each.condition}` }, bar), ` ${Math.round(100 * each.budget_left)} %`],
        each.condition.replace("_", " "),
      ],
    };
  });
  const heads = ["objective", "bound", "#value", "error budget left", "state"];
  return el("section", { class: "wide" }, el("h2", {}, "Objectives"), table(heads, rows));
}

export async function overview(show, run) {
  const [facts, answer, first] = await Promise.all([ask(of(run)), ask(of(run, "/curves")), ask(of(run, "/moment"))]);
  let curves = answer.curves;
  let updates = answer.updates;
  let moment = first;
  const over = axisChoice(() => draw());
  const lost = el("p", { class: "lead", role: "status" });
  const live = el("div");
  const plots = el("div", { class: "plots" });
  const flow = el("div", { class: "plots" });
  const goals = el("div");
  show(...headline(facts), lost, live, el("p", {}, over), plots, flow, goals, processes(facts), runFile(facts));
  const charts = new Map();

  function chartFor(name, title, caption) {
    if (!charts.has(name)) {
      const made = figure(title, caption);
      charts.set(name, made.chart);
      plots.append(made.figure);
    }
    return charts.get(name);
  }

  function showMoment(line) {
    fill(live, diagnosis(moment), el("div", { class: "cards" }, cardsOf(line, moment)));
    fill(goals, objectives(moment));
  }

  function draw() {
    const xLabel = STEPS[over.value];
    const curve = (name, more = {}) => ({ name, x: curves[name][over.value], y: curves[name].value, ...more });
    const score = facts.line.score_name;
    // All figures have their place before the first is drawn, so that each is drawn at its width.
    const drawings = [];
    if (curves[score]) {
      const evaluated = over.value === "step" ? evaluations(facts, score) : null;
      const chart = chartFor("score", score.replaceAll("_", " "), answer.meanings[score] ?? "");
      drawings.push([chart, [curve(score), ...(evaluated ? [evaluated] : [])], { xLabel }]);
    }
    if (curves.lag_max) {
      const chart = chartFor("lag", "Lag", "Versions between the oldest policy inside a trajectory and the policy it trained.");
      const limit = moment.max_lag ?? facts.line.max_lag;
      drawings.push([chart, [curve("lag_max", { steps: true }), curve("lag_mean")], { xLabel, limit }]);
    }
    for (const name of inOrder(Object.keys(curves))) {
      if (name === score || name === "lag_max" || name === "lag_mean") continue;
      const chart = chartFor(name, name.replaceAll("_", " "), answer.meanings[name] ?? "");
      drawings.push([chart, [curve(name)], { xLabel }]);
    }
    for (const [chart, lines, options] of drawings) drawLines(chart, lines, options);
  }

  async function drawFlowOfWork() {
    const found = await ask(of(run, "/flow"));
    const waiting = Object.entries(found.depths).map(([name, points]) => ({ name, x: points.at_s, y: points.value }));
    if (!waiting.length) return;
    const running = waiting.find((each) => each.name === "in rollout");
    const ends = Object.entries(found.states);
    if (running && running.y.at(-1) > 0) ends.push(["in rollout", running.y.at(-1)]);
    const ledger = figure("Ledger", "Every admitted trajectory: trained, dropped, or in flight.");
    const depths = figure("In flight", "Trajectories in rollout, waiting for a batch, and in a batch.");
    const rates = figure("Rates", "Trajectories admitted, stored and ended, per second.");
    const stages = figure("Seconds in each stage", "Means of what was trained.");
    fill(flow, ledger.figure, depths.figure, rates.figure, stages.figure);
    const xLabel = "seconds since the first admission";
    const lines = (series) => Object.entries(series).map(([name, points]) => ({ name, x: points.at_s, y: points.value }));
    drawFlow(ledger.chart, ends.sort((left, right) => right[1] - left[1]));
    drawAreas(depths.chart, waiting, { xLabel });
    const { "trained steps": _steps, ...trajectories } = found.rates;
    drawLines(rates.chart, lines(trajectories), { xLabel });
    drawLines(stages.chart, lines(found.stages_s), { xLabel });
  }

  showMoment(facts.line);
  draw();
  drawFlowOfWork().catch((error) => fill(flow, el("p", { class: "lead" }, error.message)));
  if (facts.line.state !== "running") return () => {};

  const stream = new EventSource(`/api/${of(run, "/live")}`);
  let lastAsked = performance.now();
  stream.onerror = () => {
    const then = time(moment.at_s);
    lost.textContent =
      stream.readyState === EventSource.CLOSED
        ? `This page is not updated any more, its figures are of ${then}: reload it.`
        : `The server does not answer, the figures are of ${then}. The page goes on when it does.`;
  };
  stream.onmessage = async (event) => {
    const now = JSON.parse(event.data);
    moment = now.moment;
    lost.textContent = "";
    showMoment(now.line);
    if (now.line.state !== "running") {
      stream.close();
      window.dispatchEvent(new Event("hashchange")); // the page of a run that ended
      return;
    }
    if (now.line.step === updates || performance.now() - lastAsked < CURVES_PERIOD_MS) return;
    lastAsked = performance.now();
    updates = now.line.step;
    curves = (await ask(of(run, "/curves"))).curves;
    draw();
  };
  return () => stream.close();
}

/** What tells of learning before what tells of time. */
function inOrder(names) {
  const isTime = (name) => name.endsWith("_s") || name === "samples";
  return [...names.filter((name) => !isTime(name)), ...names.filter(isTime)];
}

function evaluations(facts, score) {
  const name = score === "mean_return" ? "evaluation_return" : "solved_share";
  const found = facts.evaluations.filter((each) => typeof each[name] === "number");
  if (!found.length) return null;
  const step = (each) => Number(String(each.version).split("@").at(-1));
  return { name: name.replaceAll("_", " "), x: found.map(step), y: found.map((each) => each[name]), points: true };
}

function processes(facts) {
  const rows = Object.entries(facts.processes).map(([name, process]) => ({
    cells: [name, process.state, number(process.pid), number(process.restarts)],
  }));
  const heads = ["process", "state", "#pid", "#restarts"];
  return el("section", { class: "wide" }, el("details", {}, el("summary", {}, "Processes"), table(heads, rows)));
}

function runFile(facts) {
  const summary = el("summary", {}, "The run file with every default");
  return el("section", { class: "wide" }, el("details", {}, summary, el("pre", {}, facts.run_file)));
}

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
  const heads = ["trajectory", "state", "#reward", "#tokens or steps", "#lag", "#age", "trained from", "bin", "started"];
  show(
    el("header", {}, el("h1", {}, "Trajectories"), el("span", { class: "brand" }, run)),
    filterForm(query, (wanted) => (location.hash = `${here}?${wanted}`)),
    rows.length ? table(heads, lines) : el("p", { class: "lead" }, "No trajectory fits the filter."),
    pages(query.has("before") ? `${here}?${newest}` : null, rows.length === 100 ? `${here}?${older}` : null),
  );
}

export async function trajectory(show, run, id) {
  const found = await ask(of(run, `/trajectories/${encodeURIComponent(id)}`));
  const facts = [
    ["outcome", found.sentence],
    ["task", `${found.task_id}, attempt ${found.attempt}${found.actor_id ? `, by ${found.actor_id}` : ""}`],
    ["environment", `${found.env_id || "–"}, ${found.num_steps} ${found.length_tokens ? "tokens" : "steps"}`],
    ["versions", found.spans.map((span) => `${span.version.lineage}@${span.version.step} for [${span.start}, ${span.stop})`).join(", ") || "–"],
    ["reward", number(found.reward, 5)],
    ...Object.entries(found.reward_components ?? {}).map(([name, value]) => [`reward: ${name}`, number(value, 5)]),
    ["verifier", found.verifier_log],
    ["finish", found.finish_reason],
    ["answer", found.answer],
  ].filter(([, value]) => value !== "" && value !== undefined && value !== null);
  const list = el("dl", { class: "facts" }, facts.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
  const words = el("div", { class: "words" }, found.completion || "");
  const legend = el("p", { class: "legend" });
  show(
    el("header", {}, el("h1", {}, id), pill(found.state === "dropped" ? "bad" : "good", found.state)),
    el("section", { class: "wide" }, list),
    stages(found.stages),
    found.prompt ? section("Prompt", conversation(found.prompt)) : null,
    found.length_tokens ? section("Completion", legend, words) : null,
    found.tool_calls?.length ? section("Tool calls", toolCalls(found.tool_calls)) : null,
    found.group.length ? section("Group", group(run, found.group, id)) : null,
  );
  if (found.length_tokens) await drawTokens(run, id, words, legend);
}

const section = (title, ...children) => el("section", { class: "wide" }, el("h2", {}, title), ...children);

/** A chat as its messages; any other prompt as it is. */
function conversation(prompt) {
  let messages = null;
  try {
    messages = JSON.parse(prompt);
  } catch {
    // plain text
  }
  if (!Array.isArray(messages) || !messages.every((each) => typeof each?.content === "string")) {
    return el("div", { class: "words" }, prompt);
  }
  return el("dl", { class: "facts" }, messages.map((each) => [el("dt", {}, each.role), el("dd", { class: "words" }, each.content)]));
}

async function drawTokens(run, id, words, legend) {
  let found;
  try {
    found = await ask(of(run, `/trajectories/${encodeURIComponent(id)}/tokens`));
  } catch (error) {
    legend.textContent = error.message;
    return;
  }
  if (!found.tokens.length) {
    legend.textContent = found.why;
    return;
  }
  fill(
    legend,
    ...found.spans.map((version, index) => el("span", { class: `v${index % 8}` }, version)),
    "The darker a token, the less likely the policy was to choose it; replies of the environment are in italics.",
  );
  fill(
    words,
    ...found.tokens.map((token) => {
      const title = token.chosen ? `${found.spans[token.span]}, log-probability ${number(token.logprob)}` : "reply";
      const element = el("span", { class: token.chosen ? `v${token.span % 8}` : "reply", title }, token.text);
      if (token.chosen && token.logprob !== null) {
        const surprise = Math.min(1, -token.logprob / 5);
        element.style.backgroundColor = `color-mix(in srgb, var(--series-2) ${Math.round(60 * surprise)}%, transparent)`;
      }
      return element;
    }),
    found.more ? el("i", {}, ` … and ${found.more} more tokens`) : "",
  );
}

function stages(found) {
  if (!found.length) return null;
  const start = Math.min(...found.map((stage) => stage.started_at_s));
  const whole = Math.max(...found.map((stage) => stage.finished_at_s)) - start || 1e-9;
  const rows = found.map((stage) => {
    const bar = el("i");
    bar.style.marginLeft = `${(100 * (stage.started_at_s - start)) / whole}%`;
    bar.style.width = `${Math.max(0.5, (100 * (stage.finished_at_s - stage.started_at_s)) / whole)}%`;
    const took = seconds(stage.finished_at_s - stage.started_at_s);
    return el("div", { class: "stage" }, el("span", {}, stage.stage), el("span", {}, stage.worker), el("span", {}, took), el("div", {}, bar));
  });
  return section(`Stages, ${seconds(whole)} in all`, rows);
}

function toolCalls(calls) {
  const rows = calls.map((call) => ({
    cells: [call.name, el("span", { class: "words" }, call.arguments), el("span", { class: "words" }, call.result), seconds(call.finished_at_s - call.started_at_s)],
  }));
  return table(["tool", "arguments", "result", "#took"], rows);
}

function group(run, rows, id) {
  const lines = rows.map((row) => ({
    open: row.trajectory_id === id ? null : link(run, `/trajectory/${encodeURIComponent(row.trajectory_id)}`),
    cells: [row.trajectory_id, row.state + (row.reason ? `: ${row.reason}` : ""), number(row.reward, 4), number(row.length_tokens), row.lag ?? "–"],
  }));
  return table(["trajectory", "state", "#reward", "#tokens", "#lag"], lines);
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
