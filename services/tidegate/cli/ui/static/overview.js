// The page of one run: the moment, its curves, the flow of work, and its objectives.

import { ask, link, of, repeat } from "./asking.js";
import { chartsAreReady, drawAreas, drawFlow, drawLines, figure, timeUnit } from "./charts.js";
import { axisChoice, axisOf, inOrder, titleOf } from "./curves.js";
import { el, fill, number, refill, section, table, time } from "./elements.js";
import { auditPill, statePill } from "./runs.js";

const CURVES_PERIOD_MS = 3000;
const FLOW_PERIOD_MS = 10_000;

function headline(facts) {
  const { line } = facts;
  const lead =
    `${line.env} · max_lag ${line.max_lag} · batch ${facts.batch_size} · max_running ${facts.max_running}` +
    (facts.target ? ` · target ${facts.target}` : "") +
    (facts.forked_from ? ` · forked from ${facts.forked_from}` : "");
  return [el("header", {}, el("h1", {}, line.run_id), statePill(line), auditPill(line)), el("p", { class: "lead" }, lead)];
}

/** Of a run that is over: how it ended, and what its summary says. */
function ending(facts) {
  if (facts.line.state === "running") return null;
  if (facts.line.state === "stopped") {
    const killed = "It has no summary: it never began to train, or it was killed. `tidegate up RUN.yaml --dir FOLDER` resumes it.";
    return el("div", { class: "note bad" }, el("p", {}, killed));
  }
  const { problem, audit_line: audit, notes } = facts.summary ?? {};
  const lines = [problem, audit, ...(notes ?? [])].filter(Boolean);
  if (!lines.length) return null;
  return el("div", { class: `note${problem ? " bad" : ""}` }, lines.map((line) => el("p", {}, line)));
}

function cardsOf(line, moment) {
  const card = (value, what, more) =>
    el("div", { class: "card" }, el("b", {}, value), el("span", {}, what), el("i", {}, more ?? ""));
  const percent = (ratio) => `${Math.round(100 * (ratio ?? 0))} %`;
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
      signals.learner_idle_ratio === undefined ? "–" : percent(signals.learner_idle_ratio),
      "learner waits",
      `actors busy ${percent(signals.actor_busy_ratio)}` +
        (signals.learner_gpu_busy_ratio === undefined ? "" : `, its GPUs ${percent(signals.learner_gpu_busy_ratio)}`),
    ),
  ];
}

function diagnosis(moment, line) {
  const problems = moment.problems.map((problem) => el("p", {}, problem));
  if (!moment.sentence) return el("div", { class: "note" }, el("p", {}, "Admission has written no sample."), problems);
  return el(
    "div",
    { class: `note${problems.length ? " bad" : ""}` },
    el("p", {}, el("b", {}, `Bottleneck: ${moment.bottleneck}. `), moment.sentence),
    el("p", {}, el("b", {}, "Fix: "), moment.fix || "nothing to fix"),
    problems,
    line.state === "running" ? null : el("p", { class: "then" }, `As it was while it last trained, ${time(moment.at_s)}.`),
  );
}

function objectives(moment) {
  if (!moment.objectives.length) return [];
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
  return section("Objectives", table(heads, rows));
}

export async function overview(show, run) {
  const [facts, answer, first] = await Promise.all([ask(of(run)), ask(of(run, "/curves")), ask(of(run, "/moment"))]);
  let curves = answer.curves;
  let moment = first;
  const over = axisChoice(() => draw());
  const lost = el("p", { class: "note bad", role: "status" });
  const live = el("div");
  const plots = el("div", { class: "plots" });
  const flow = el("div", { class: "plots" });
  const goals = el("div");
  const gaps = el("div");
  show(...headline(facts), ending(facts), lost, live, el("p", {}, over), plots, flow, goals, gaps, processes(facts), runFile(facts));
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
    refill(live, diagnosis(moment, line), el("div", { class: "cards" }, cardsOf(line, moment)));
    refill(goals, objectives(moment));
  }

  function draw() {
    const { xLabel, valuesOf } = axisOf(over.value, Object.values(curves));
    const curve = (name, more = {}) => ({ name, x: valuesOf(curves[name]), y: curves[name].value, ...more });
    const score = facts.line.score_name;
    // All figures have their place before the first is drawn, so that each is drawn at its width.
    const drawings = [];
    if (curves[score]) {
      const evaluated = evaluations(facts, curves[score], valuesOf);
      const chart = chartFor("score", titleOf(score), answer.meanings[score] ?? "");
      drawings.push([chart, [curve(score), ...(evaluated ? [evaluated] : [])], { xLabel }]);
    }
    if (curves.lag_max) {
      const chart = chartFor("lag", "Lag", "Versions between the oldest policy inside a trajectory and the policy it trained.");
      const limit = moment.max_lag ?? facts.line.max_lag;
      drawings.push([chart, [curve("lag_max", { steps: true }), curve("lag_mean")], { xLabel, limit }]);
    }
    for (const name of inOrder(Object.keys(curves))) {
      if (name === score || name === "lag_max" || name === "lag_mean") continue;
      drawings.push([chartFor(name, titleOf(name), answer.meanings[name] ?? ""), [curve(name)], { xLabel }]);
    }
    for (const [chart, lines, options] of drawings) drawLines(chart, lines, options);
  }

  showMoment(facts.line);
  await chartsAreReady();
  draw();
  const river = flowOfWork(flow, run);
  river().catch((error) => fill(flow, el("p", { class: "lead" }, error.message)));
  ask(of(run, "/gaps")).then((found) => fill(gaps, largestGaps(run, found))).catch((error) => fill(gaps, el("p", { class: "lead" }, error.message)));
  if (facts.line.state !== "running") return () => {};

  const endsCurves = repeat(async () => {
    curves = (await ask(of(run, "/curves"))).curves;
    draw();
  }, CURVES_PERIOD_MS);
  const endsFlow = repeat(river, FLOW_PERIOD_MS);
  const stream = new EventSource(`/api/${of(run, "/live")}`);
  const end = () => {
    stream.close();
    endsCurves();
    endsFlow();
  };
  stream.onerror = () => {
    const then = time(moment.at_s);
    lost.textContent =
      stream.readyState === EventSource.CLOSED
        ? `This page is not updated any more, its figures are of ${then}: reload it.`
        : `The server does not answer, the figures are of ${then}. The page goes on when it does.`;
  };
  stream.onmessage = (event) => {
    const now = JSON.parse(event.data);
    moment = now.moment;
    lost.textContent = "";
    showMoment(now.line);
    if (now.line.state === "running") return;
    end();
    window.dispatchEvent(new Event("hashchange")); // the page of a run that ended
  };
  return end;
}

/** Draws the flow of work in `place` at each call, once there is any. */
function flowOfWork(place, run) {
  let figures = null;
  return async function draw() {
    const found = await ask(of(run, "/flow"));
    if (found.num_unread && !figures) {
      fill(place, el("p", { class: "lead" }, `The ledger is counted: ${number(found.num_unread)} rows are left.`));
    }
    if (found.num_unread) return draw();
    const depths = Object.entries(found.depths);
    if (!depths.length) return;
    if (!figures) {
      figures = {
        ledger: figure("Ledger", "Every admitted trajectory: trained, dropped, or in flight."),
        depths: figure("In flight", "Trajectories in rollout, waiting for a batch, and in a batch."),
        rates: figure("Rates", "Trajectories admitted, stored and ended, per second."),
        stages: figure("Seconds in each stage", "Means of what was trained."),
      };
      fill(place, Object.values(figures).map((each) => each.figure));
    }
    const { by, name: unit } = timeUnit(depths[0][1].at_s.at(-1) ?? 0);
    const lines = (series) =>
      Object.entries(series).map(([name, points]) => ({ name, x: points.at_s.map((at_s) => at_s / by), y: points.value }));
    const xLabel = `${unit} since the first admission`;
    const ends = Object.entries(found.states);
    const running = found.depths["in rollout"]?.value.at(-1);
    if (running > 0) ends.push(["in rollout", running]);
    drawFlow(figures.ledger.chart, ends.sort((left, right) => right[1] - left[1]));
    drawAreas(figures.depths.chart, lines(found.depths), { xLabel });
    const { "trained steps": _steps, ...trajectories } = found.rates;
    drawLines(figures.rates.chart, lines(trajectories), { xLabel });
    drawLines(figures.stages.chart, lines(found.stages_s), { xLabel });
  };
}

/** What evaluations found, each where the curve has its version. */
function evaluations(facts, curve, valuesOf) {
  const name = facts.line.score_name === "mean_return" ? "evaluation_return" : "solved_share";
  const found = facts.evaluations.filter((each) => typeof each[name] === "number");
  if (!found.length) return null;
  const places = valuesOf(curve);
  const place = (each) => {
    const step = Number(String(each.version).split("@").at(-1));
    const index = curve.step.findIndex((known) => known >= step);
    return places.at(index); // of a version that the curve does not have yet: its end
  };
  return { name: name.replaceAll("_", " "), x: found.map(place), y: found.map((each) => each[name]), points: true };
}

/** The completions on whose tokens learner and actors agree least; nothing of a run without completions. */
function largestGaps(run, found) {
  if (!found.length) return null;
  const rows = found.map((each) => {
    const address = link(run, `/trajectory/${encodeURIComponent(each.trajectory_id)}`);
    return { cells: [el("a", { href: address }, each.trajectory_id), each.version, number(each.largest)] };
  });
  const heads = ["trajectory", "version that its update made", "#largest gap of a token, nats"];
  const why = "Log-probability of the learner less that of the actor, of the newest updates: lag moves single tokens; one at the same place of many completions is an engine or a tokenizer that differs.";
  return el("section", { class: "wide" }, el("details", {}, el("summary", {}, "Where learner and actors disagree most"), el("p", { class: "lead" }, why), table(heads, rows)));
}

function processes(facts) {
  const rows = Object.entries(facts.processes).map(([name, process]) => ({
    cells: [name, process.state, number(process.pid), number(process.restarts)],
  }));
  if (!rows.length) return null;
  const heads = ["process", "state", "#pid", "#restarts"];
  return el("section", { class: "wide" }, el("details", {}, el("summary", {}, "Processes"), table(heads, rows)));
}

function runFile(facts) {
  const summary = el("summary", {}, "The run file with every default");
  return el("section", { class: "wide" }, el("details", {}, summary, el("pre", {}, facts.run_file)));
}
