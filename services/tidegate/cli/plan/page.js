"use strict";
// Sliders on the left, the answer of the planner on the right; every move draws everything again.
(() => {
  const data = JSON.parse(document.getElementById("plan-data").textContent);
  const start = data.question;
  const at = (id) => document.getElementById(id);
  const color = (index) => `var(--series-${index})`;
  const STAGE_COLORS = {actor: color(4), environment: color(0), store: color(5), learner: color(1)};
  const NAMES = {actor: "actors", environment: "environment", store: "store", learner: "learner"};
  const PIECES = {actor: "actor", environment: "worker", store: "store", learner: "learner replica"};
  const TAKES = {rollouts: "Rollouts take", stragglers: "Stragglers take", rewards: "Rewards take", train: "Training takes",
    weights: "Weights take"};
  const TERM_COLORS = {rollouts: color(4), stragglers: color(7), rewards: color(0), train: color(1), weights: color(2)};

  // ---- state: the values of the sliders. Related quantities keep their initial ratio.
  const {meanOf} = Model;
  const speedupOf = (loop) => Model.speedup(loop.num_replicas, loop.scaling);
  const ratios = start.rollouts && {
    samplesARollout: start.loop.actor_rate * meanOf(start.rollouts.rollout) * start.loop.num_actors / start.rollouts.num_slots,
    slotsAnActor: start.rollouts.num_slots / start.loop.num_actors,
    batchesAGroup: start.rollouts.group / start.loop.batch_size,
    train: start.rollouts.train_s * start.loop.learner_rate * speedupOf(start.loop) / start.rollouts.group,
  };
  const initial = () => ({
    ...start.loop, ...start.prices, after_s: start.after_s,
    ...(start.rollouts && {mean_s: meanOf(start.rollouts.rollout), c: start.rollouts.rollout.c,
      weight_sync_s: start.rollouts.weight_sync_s}),
  });
  let state = initial();

  function question() {
    const loop = {};
    for (const key of Object.keys(start.loop)) loop[key] = state[key];
    const prices = {};
    for (const key of Object.keys(start.prices)) prices[key] = state[key];
    if (!start.rollouts) return {loop, prices, after_s: state.after_s, target_per_s: start.target_per_s, rollouts: null};
    loop.actor_rate = ratios.samplesARollout * ratios.slotsAnActor / state.mean_s;
    const scale = state.mean_s / meanOf(start.rollouts.rollout);
    const asked = start.rollouts.rollout, rollout = {
      fixed: {...asked, value_s: state.mean_s},
      exponential: {...asked, mean_s: state.mean_s},
      lognormal: {...asked, mean_s: state.mean_s, c: state.c},
      histogram: {...asked, edges_s: asked.edges_s && asked.edges_s.map((edge) => edge * scale)},
    }[asked.type];
    const group = Math.max(1, Math.round(loop.batch_size * ratios.batchesAGroup));
    const rollouts = {
      ...start.rollouts, rollout, group, num_slots: Math.max(1, Math.round(loop.num_actors * ratios.slotsAnActor)),
      train_s: ratios.train * group / (loop.learner_rate * speedupOf(loop)),
      weight_sync_s: state.weight_sync_s, max_lag: loop.max_lag,
    };
    return {loop, prices, after_s: state.after_s, target_per_s: start.target_per_s, rollouts};
  }

  // ---- numbers as people read them
  const grouped = (value, digits = 0) =>
    value.toLocaleString("en-US", {minimumFractionDigits: digits, maximumFractionDigits: digits});
  const rate = (value) => (value >= 100 ? grouped(value) : grouped(value, value >= 10 ? 1 : 2));
  const short = (value) => {
    for (const [limit, suffix] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]])
      if (value >= limit) return `${+(value / limit).toPrecision(3)}${suffix}`;
    return `${+value.toPrecision(3)}`;
  };
  const dollars = (value) => (value >= 1 || value === 0 ? `$${grouped(value, 2)}` : `$${+value.toPrecision(4)}`);
  const cents = (value) => `$${grouped(value, 2)}`;
  const seconds = (value) => (value === 0 ? "0" : value < 1 ? `${+(value * 1e3).toPrecision(3)} ms` : `${+value.toPrecision(3)} s`);
  const percent = (value) => `${Math.round(value * 100)}%`;
  const signed = (value) => `${value < 0 ? "−" : "+"}${Math.round(Math.abs(value) * 100)}%`;

  // ---- sliders
  const logarithmic = (low, high) => ({
    of: (value) => 1000 * Math.log(value / low) / Math.log(high / low),
    to: (place) => low * (high / low) ** (place / 1000),
  });
  const linear = (low, high) => ({
    of: (value) => 1000 * (value - low) / (high - low),
    to: (place) => low + (high - low) * place / 1000,
  });
  const around = (value, factor) => logarithmic(value / factor, value * factor);
  const whole = (value) => Math.max(1, Math.round(value));
  const three = (value) => +value.toPrecision(3);

  function sliders() {
    const hasWorkers = start.loop.num_environments > 0;
    const spec = [["The platform"],
      ["num_actors", "Actors", logarithmic(1, Math.max(128, start.loop.num_actors * 4)), whole, grouped]];
    if (start.rollouts) spec.push(["mean_s", "Mean rollout", around(state.mean_s, 20), three, seconds]);
    else spec.push(["actor_rate", "Samples/s of one actor", around(state.actor_rate, 20), three, rate]);
    if (start.rollouts && start.rollouts.rollout.type === "lognormal")
      spec.push(["c", "Spread of rollouts, c = σ/μ", linear(0, 3), (value) => +value.toFixed(2), (value) => value.toFixed(2)]);
    if (hasWorkers) {
      spec.push(["num_environments", "Environment workers", logarithmic(1, Math.max(64, start.loop.num_environments * 4)), whole, grouped]);
      spec.push(["environment_rate", "Samples/s of one worker", around(state.environment_rate, 20), three, rate]);
    }
    spec.push(["learner_rate", "Samples/s of one replica", around(state.learner_rate, 20), three, rate]);
    const replicasMax = Model.replicasMax(start.loop.scaling);
    if (replicasMax > 1)
      spec.push(["num_replicas", "Learner replicas", linear(1, Math.min(replicasMax, 13)), whole, grouped]);
    spec.push(["batch_size", "Samples an update", logarithmic(1, Math.max(1024, start.loop.batch_size * 8)), whole, grouped]);
    if (start.rollouts)
      spec.push(["weight_sync_s", "Weights to actors", linear(0, Math.max(0.5, 2 * state.mean_s)), three, seconds]);
    spec.push(["Staleness"], ["max_lag", "Budget max_lag, versions", linear(0, 32), Math.round, grouped],
      ["after_s", "Look ahead", logarithmic(1, 3600), (value) => Math.round(value), seconds]);
    spec.push(["Dollars an hour"], ["actor_usd_per_h", "One actor", linear(0, Math.max(5, 4 * state.actor_usd_per_h)), (value) => +value.toFixed(2), cents]);
    if (hasWorkers)
      spec.push(["environment_usd_per_h", "One environment worker", linear(0, Math.max(5, 4 * state.environment_usd_per_h)), (value) => +value.toFixed(2), cents]);
    spec.push(["learner_usd_per_h", "One learner replica", linear(0, Math.max(12, 4 * state.learner_usd_per_h)), (value) => +value.toFixed(2), cents]);
    return spec;
  }

  const inputs = [];
  function buildControls() {
    const panel = at("controls");
    for (const [key, label, scale, rounded, shown] of sliders()) {
      if (label === undefined) {
        panel.insertAdjacentHTML("beforeend", `<h2>${key}</h2>`);
        continue;
      }
      const row = document.createElement("label");
      row.className = "slider";
      row.innerHTML = `<span>${label}<b></b></span><input type="range" min="0" max="1000" step="1">`;
      const input = row.querySelector("input"), value = row.querySelector("b");
      input.setAttribute("aria-label", label);
      input.addEventListener("input", () => { state[key] = rounded(scale.to(+input.value)); draw(); });
      inputs.push({
        place: () => { input.value = scale.of(state[key]); },
        tell: () => { value.textContent = shown(state[key]); },
      });
      panel.append(row);
    }
    const reset = document.createElement("button");
    reset.textContent = "Reset";
    reset.addEventListener("click", () => { state = initial(); place(); draw(); });
    panel.append(reset);
  }
  const place = () => inputs.forEach((input) => input.place());

  // ---- drawing
  const svg = (width, height, body) =>
    `<svg viewBox="0 0 ${width} ${height}" role="img" preserveAspectRatio="xMidYMid meet">${body}</svg>`;
  const text = (x, y, words, {cls = "axis", anchor = "start", fill = ""} = {}) =>
    `<text x="${x.toFixed(1)}" y="${y.toFixed(1)}" class="${cls}" text-anchor="${anchor}"${fill && ` style="fill:${fill}"`}>${words}</text>`;
  const box = (x, y, width, height, fill, {opacity = 1, radius = 3, title = ""} = {}) =>
    `<rect x="${x.toFixed(1)}" y="${y.toFixed(1)}" width="${Math.max(0, width).toFixed(1)}" height="${height}" rx="${radius}" ` +
    `style="fill:${fill}" opacity="${opacity}">${title && `<title>${title}</title>`}</rect>`;
  const path = (points, stroke, {width = 2.2, dash = ""} = {}) =>
    `<path d="M${points.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join("L")}" fill="none" ` +
    `style="stroke:${stroke}" stroke-width="${width}" ${dash && `stroke-dasharray="${dash}"`}/>`;
  const rule = (x1, y1, x2, y2) => `<line class="grid" x1="${x1}" y1="${y1}" x2="${x2}" y2="${y2}"/>`;
  const dot = (x, y, fill) => `<circle cx="${x.toFixed(1)}" cy="${y.toFixed(1)}" r="4.5" style="fill:${fill};stroke:var(--card)" stroke-width="2"/>`;

  function ticks(high, count = 4) {
    const rough = high / count, power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 2.5, 5, 10].find((factor) => factor * power >= rough);
    return Array.from({length: Math.floor(high / step + 1e-9) + 1}, (_, index) => index * step);
  }

  const FRAME = {width: 460, height: 236, left: 54, right: 54, top: 24, bottom: 34};
  const plotX = (share) => FRAME.left + share * (FRAME.width - FRAME.left - FRAME.right);
  const plotY = (share) => FRAME.height - FRAME.bottom - share * (FRAME.height - FRAME.top - FRAME.bottom);

  function axes(xHigh, yHigh, {x, y, xWords, right = null}) {
    let body = "";
    for (const tick of ticks(yHigh)) {
      body += rule(plotX(0), plotY(tick / yHigh), plotX(1), plotY(tick / yHigh));
      body += text(plotX(0) - 7, plotY(tick / yHigh) + 4, y(tick), {anchor: "end"});
      if (right) body += text(plotX(1) + 7, plotY(tick / yHigh) + 4, right(tick));
    }
    for (const tick of ticks(xHigh, 5)) body += text(plotX(tick / xHigh), plotY(0) + 16, x(tick), {anchor: "middle"});
    return body + text(plotX(0.5), FRAME.height - 3, xWords, {anchor: "middle"});
  }

  function drawUsed(answer) {
    const rows = answer.balance.stages, pitch = Math.min(76, 200 / rows.length);
    let body = "";
    rows.forEach((stage, index) => {
      const y = 20 + (index + 0.5) * pitch - 15, width = 236, isFull = stage.utilisation > 0.98;
      body += text(0, y + 12, `${grouped(stage.count)} ${PIECES[stage.name]}${stage.count === 1 ? "" : "s"}`, {cls: "name"});
      body += text(0, y + 27, `${short(stage.capacity_per_s)}/s at most`);
      body += `<rect class="track" x="128" y="${y}" width="${width}" height="26" rx="5"/>`;
      body += box(128, y, width * stage.utilisation, 26, STAGE_COLORS[stage.name], {radius: 5});
      body += text(128 + width + 10, y + 18, percent(stage.utilisation), {cls: "strong"});
      if (isFull) body += text(460, y + 18, "bottleneck", {anchor: "end", fill: "var(--bad)"});
    });
    at("used").innerHTML = svg(460, FRAME.height, body);
    at("used-note").textContent = `${rate(answer.balance.throughput_per_s)} samples/s pass every stage; the fully used one is the bottleneck.`;
  }

  function drawLag(answer, loop) {
    const {unbounded, bounded, after_s: after, budget_lasts_s: lasts} = answer.balance;
    const high = Math.max(unbounded.lag_updates, loop.max_lag, 1) * 1.08;
    let body = axes(after, high, {x: seconds, y: short, xWords: "seconds since the start",
      right: (tick) => short(tick * loop.batch_size)});
    body += text(plotX(0) - 46, 10, "updates behind") + text(plotX(1) + 50, 10, "samples", {anchor: "end"});
    body += path([[plotX(0), plotY(0)], [plotX(1), plotY(unbounded.lag_updates / high)]], "var(--limit)");
    const bend = lasts === null ? 1 : Math.min(1, lasts / after);
    body += path([[plotX(0), plotY(0)], [plotX(bend), plotY(bounded.lag_updates / high)], [plotX(1), plotY(bounded.lag_updates / high)]], "var(--good)", {width: 2.8});
    if (unbounded.queue > 0) {
      body += text(plotX(0.6) - 10, plotY(0.6 * unbounded.lag_updates / high) - 6, "without admission", {cls: "strong", anchor: "end", fill: "var(--limit)"});
      body += text(plotX(1) - 4, plotY(bounded.lag_updates / high) - 7, `with admission: ${short(bounded.lag_updates)}`, {cls: "strong", anchor: "end", fill: "var(--good)"});
    } else body += text(plotX(0.5), plotY(0.5), "stable queue", {cls: "strong", anchor: "middle", fill: "var(--good)"});
    at("lag").innerHTML = svg(FRAME.width, FRAME.height, body);
    at("lag-note").textContent = unbounded.queue > 0
      ? `After ${seconds(after)} without admission ${grouped(unbounded.queue)} samples wait, ${grouped(unbounded.lag_updates, 1)} updates behind; the budget lasts ${seconds(lasts)}.`
      : "The learner keeps up with the actors.";
  }

  function drawCost(answer, loop, prices) {
    const proposal = answer.rebalancing;
    const most = Math.max(8, Math.ceil(1.6 * Math.max(loop.num_actors, proposal.num_actors)));
    const step = Math.max(1, Math.floor(most / 240)), counts = [];
    for (let actors = 1; actors <= most; actors += step) counts.push(actors);
    const costOf = (actors, replicas, workers) => {
      const sized = {...loop, num_actors: actors, num_replicas: replicas, num_environments: workers};
      return Model.usdPerMillion(Model.usdPerHour(sized, prices), Model.throughput(sized));
    };
    const now = costOf(loop.num_actors, loop.num_replicas, loop.num_environments), best = proposal.usd_per_million_after;
    const high = Math.min(Math.max(...counts.map((actors) => costOf(actors, loop.num_replicas, loop.num_environments))), 2.6 * now) || 1;
    const line = (replicas, workers) => counts.map((actors) => [actors / most, costOf(actors, replicas, workers) / high])
      .filter(([, share]) => share <= 1.001).map(([x, y]) => [plotX(x), plotY(y)]);
    let body = axes(most, high, {x: (tick) => grouped(tick), y: (tick) => dollars(three(tick)), xWords: "actors"});
    const others = proposal.num_replicas !== loop.num_replicas || proposal.num_environments !== loop.num_environments;
    if (others) body += path(line(proposal.num_replicas, proposal.num_environments), "var(--good)", {width: 1.6, dash: "5 4"});
    body += path(line(loop.num_replicas, loop.num_environments), color(1));
    const mark = (actors, cost, words, fill, below) => {
      const x = plotX(actors / most), y = plotY(Math.min(1, cost / high));
      const anchor = actors / most > 0.6 ? "end" : "start", shift = anchor === "end" ? -8 : 8;
      return dot(x, y, fill) + text(x + shift, y + (below ? 19 : -9), words, {cls: "strong", anchor, fill});
    };
    if (proposal.changes) body += mark(proposal.num_actors, best, `cheapest ${dollars(best)}`, "var(--good)", true);
    body += mark(loop.num_actors, now, `now ${dollars(now)}`, color(1), false);
    at("cost").innerHTML = svg(FRAME.width, FRAME.height, body);
    at("cost-note").textContent = "Falls while the actors are the bottleneck and rises after: the bend is the balance."
      + (others ? " Dashed: with the proposed replicas and workers." : "");
  }

  function drawReplicas(answer, loop) {
    const most = Math.min(Model.replicasMax(loop.scaling), 8), counts = Array.from({length: most}, (_, index) => index + 1);
    const learner = counts.map((replicas) => loop.learner_rate * Model.speedup(replicas, loop.scaling));
    const others = Math.min(...Model.capacities(loop).filter(([name]) => name !== "learner").map((stage) => stage[2]));
    const high = Math.max(...learner, others) * 1.08;
    let body = "";
    for (const tick of ticks(high)) {
      body += rule(plotX(0), plotY(tick / high), plotX(1), plotY(tick / high));
      body += text(plotX(0) - 7, plotY(tick / high) + 4, short(tick), {anchor: "end"});
    }
    const slot = (plotX(1) - plotX(0)) / most;
    counts.forEach((replicas, index) => {
      const share = learner[index] / high, enough = learner[index] >= others;
      const fill = replicas === loop.num_replicas ? color(1) : enough ? "var(--good)" : color(7);
      body += box(plotX(0) + slot * (index + 0.16), plotY(share), slot * 0.68, (plotY(0) - plotY(share)).toFixed(1), fill,
        {opacity: replicas === loop.num_replicas ? 1 : 0.55, title: `${rate(learner[index])} samples/s`});
      body += text(plotX(0) + slot * (index + 0.5), plotY(0) + 16, `${replicas}`, {anchor: "middle"});
    });
    body += path([[plotX(0), plotY(others / high)], [plotX(1), plotY(others / high)]], "var(--limit)", {width: 1.8, dash: "5 4"});
    body += text(plotX(1), plotY(others / high) - 6, `the rest: ${short(others)}/s`, {cls: "strong", anchor: "end", fill: "var(--limit)"});
    body += text(plotX(0.5), FRAME.height - 3, "replicas (samples/s of all)", {anchor: "middle"});
    at("replicas").innerHTML = svg(FRAME.width, FRAME.height, body);
    const free = answer.learner_free_at;
    at("replicas-note").textContent = free === null ? "No number of replicas keeps up with the rest."
      : free === 1 ? "One replica is no bottleneck." : `From ${free} replicas on the learner is no bottleneck.`;
  }

  // ---- rollouts: a drawing of some places, with durations drawn from the distribution by a fixed seed
  const PLACES_DRAWN = 8, STEPS_DRAWN = 3, ROLLOUTS_DRAWN_MAX = 600;
  function generator(seed) {
    let value = seed;
    return () => { value = (value * 1664525 + 1013904223) % 4294967296; return (value + 0.5) / 4294967296; };
  }
  function drawOf(durations, random) {
    if (durations.type === "fixed") return durations.value_s;
    if (durations.type === "exponential") return -durations.mean_s * Math.log(random());
    if (durations.type === "histogram") {
      const {edges_s: edges, counts} = durations;
      let left = random() * counts.reduce((sum, count) => sum + count, 0), bin = 0;
      while (bin < counts.length - 1 && left >= counts[bin]) left -= counts[bin++];
      return edges[bin] + random() * (edges[bin + 1] - edges[bin]);
    }
    const s = Math.sqrt(Math.log1p(durations.c ** 2));
    const normal = Math.sqrt(-2 * Math.log(random())) * Math.cos(2 * Math.PI * random());
    return durations.mean_s * Math.exp(s * normal - s * s / 2);
  }

  function scene(loop, horizon, random, {isSynchronous, rewardTail}) {
    const places = Math.min(PLACES_DRAWN, loop.num_slots), group = Math.max(1, Math.round(loop.group * places / loop.num_slots));
    const free = Array(places).fill(0), rollouts = [], updates = [], published = [0];
    let batch = [], learnerFree = 0, now = 0;
    const versionAt = (time) => published.filter((at_s) => at_s <= time).length - 1;
    if (isSynchronous) {
      while (now < horizon) {
        free.fill(now);
        for (let index = 0; index < group; index += 1) {
          const lane = free.indexOf(Math.min(...free)), took = drawOf(loop.rollout, random);
          rollouts.push([lane, free[lane], free[lane] + took, updates.length]);
          free[lane] += took;
        }
        const ended = Math.max(...free) + rewardTail;
        updates.push([ended, ended + loop.train_s, updates.length + 1]);
        now = ended + loop.train_s + loop.weight_sync_s;
      }
      return {places, rollouts, updates};
    }
    const update = () => {
      const at_s = Math.max(batch[group - 1], learnerFree);
      updates.push([at_s, at_s + loop.train_s, updates.length + 1]);
      published.push(at_s + loop.train_s + loop.weight_sync_s);
      learnerFree = at_s + loop.train_s;
      batch = batch.slice(group);
    };
    while (Math.min(...free) < horizon && rollouts.length < ROLLOUTS_DRAWN_MAX) {
      const lane = free.indexOf(Math.min(...free)), took = drawOf(loop.rollout, random);
      batch.sort((one, other) => one - other);
      // Admission: the n-th rollout waits for the version that makes room for it in the budget.
      const awaited = Math.floor(rollouts.length / group) - loop.max_lag;
      while (published.length <= awaited) update();
      const begun = Math.max(free[lane], awaited > 0 ? published[awaited] : 0);
      // Rollouts begin in the order of time, so every batch that was full before this one began is known by now.
      while (batch.length >= group && batch[group - 1] <= begun) update();
      rollouts.push([lane, begun, begun + took, versionAt(begun)]);
      batch.push(begun + took);
      free[lane] = begun + took;
    }
    return {places, rollouts, updates};
  }

  const VERSION_COLORS = [4, 0, 6, 2, 3, 5].map(color);
  function drawTimeline(answer, loop) {
    const horizon = STEPS_DRAWN * answer.rollouts.synchronous.wall_s, width = 1080, left = 146, random = generator(20260);
    const lane = Math.max(15, Math.round(60 / Math.min(PLACES_DRAWN, loop.num_slots)));
    const x = (time) => left + (width - left - 6) * Math.min(1, time / horizon);
    const rewardTail = answer.rollouts.synchronous.reward_tail_s;
    let body = "", y = 4;
    for (const [name, isSynchronous] of [["synchronous", true], ["asynchronous", false]]) {
      const {places, rollouts, updates} = scene(loop, horizon, random, {isSynchronous, rewardTail}), base = y;
      body += text(0, base + 13, name, {cls: "strong"}) + text(0, base + 29, "a bar is a rollout,") + text(0, base + 43, "its colour the version");
      for (let index = 0; index < places; index += 1)
        body += `<rect class="track" x="${left}" y="${base + index * lane}" width="${width - left - 6}" height="${lane - 3}" rx="2" opacity="0.55"/>`;
      for (const [place, begun, ended, version] of rollouts)
        if (begun < horizon)
          body += box(x(begun), base + place * lane, Math.max(1, x(ended) - x(begun) - 1), lane - 3,
            VERSION_COLORS[version % VERSION_COLORS.length], {radius: 2, title: `version ${version}, ${seconds(ended - begun)}`});
      const below = base + places * lane + 3;
      body += text(0, below + 10, "learner", {cls: "axis"});
      body += `<rect class="track" x="${left}" y="${below}" width="${width - left - 6}" height="12" rx="2" opacity="0.55"/>`;
      for (const [begun, ended, version] of updates)
        if (begun < horizon) body += box(x(begun), below, Math.max(2, x(ended) - x(begun)), 12, color(1), {radius: 2, title: `makes version ${version}`});
      y = below + 34;
    }
    for (const tick of ticks(horizon, 8)) body += text(x(tick), y - 8, seconds(tick), {anchor: "middle"});
    at("timeline").innerHTML = svg(width, y, body);
    const {speedup, asynchronous} = answer.rollouts;
    at("timeline-note").textContent = `${STEPS_DRAWN} synchronous steps long, on ${Math.min(PLACES_DRAWN, loop.num_slots)} of ${grouped(loop.num_slots)} places;`
      + ` durations are drawn, the numbers are the mean: ${speedup.toFixed(2)}× by asynchrony at a mean lag of ${asynchronous.lag_mean.toFixed(1)}.`;
  }

  function drawStep(answer) {
    const {synchronous: inTurn, asynchronous: overlapped, dominant, dominant_share: share} = answer.rollouts;
    const terms = [["rollouts", inTurn.work_s], ["stragglers", inTurn.straggler_wait_s], ["rewards", inTurn.reward_tail_s],
      ["train", inTurn.learner_stall_s], ["weights", inTurn.weight_sync_s]].filter(([, value]) => value > 0);
    const longest = Math.max(inTurn.wall_s, overlapped.effective_wall_s), left = 102, width = 460 - left;
    let body = "", from = left;
    body += text(0, 30, "synchronous", {cls: "name"}) + text(0, 72, "asynchronous", {cls: "name"});
    for (const [name, value] of terms) {
      const long = width * value / longest;
      body += box(from, 12, long - 1, 28, TERM_COLORS[name], {title: `${name} ${seconds(value)}`});
      if (long > 58) body += text(from + long / 2, 30, name, {cls: "onbar", anchor: "middle"});
      from += long;
    }
    body += box(left, 54, width * overlapped.wall_s / longest, 28, color(4));
    if (overlapped.effective_wall_s > overlapped.wall_s)
      body += box(left + width * overlapped.wall_s / longest, 54, width * (overlapped.effective_wall_s - overlapped.wall_s) / longest, 28, "var(--limit)", {title: "freshness penalty"});
    let legend = 112;
    for (const [name, value] of terms) {
      body += box(left, legend - 10, 11, 11, TERM_COLORS[name]) + text(left + 18, legend, name, {cls: "name"});
      body += text(left + 230, legend, seconds(value), {cls: "name", anchor: "end"}) + text(left + 280, legend, percent(value / inTurn.wall_s), {anchor: "end"});
      legend += 20;
    }
    body += text(left + 18, legend, "wall, asynchronous", {cls: "name"}) + text(left + 230, legend, seconds(overlapped.effective_wall_s), {cls: "strong", anchor: "end"});
    body += text(left + 246, legend, `bound by ${overlapped.bound_by}`, {anchor: "start"});
    at("step").innerHTML = svg(460, legend + 14, body);
    at("step-note").textContent = `${TAKES[dominant]} ${percent(share)} of ${seconds(inTurn.wall_s)}; learner idle ${percent(inTurn.learner_idle_ratio)}, overlapped ${percent(overlapped.learner_idle_ratio)}.`;
  }

  function drawTail(answer) {
    const tail = answer.rollouts.tail;
    const rows = [["mean of one", tail.mean_s, "", color(7)], [`slowest of ${grouped(tail.num_draws)}`, tail.max_s, "exact", color(4)]];
    if (tail.leading_s !== null) rows.push(["leading term", tail.leading_s, signed(tail.leading_error), color(2)]);
    if (tail.gumbel_s !== null) rows.push(["Gumbel", tail.gumbel_s, signed(tail.gumbel_error), color(5)]);
    const longest = Math.max(...rows.map((row) => row[1]));
    let body = "";
    rows.forEach(([name, value, note, fill], index) => {
      const y = 10 + index * 38;
      body += text(0, y + 17, name, {cls: "name"}) + box(112, y, 210 * value / longest, 25, fill);
      body += text(112 + 210 * value / longest + 8, y + 17, seconds(value), {cls: "strong"}) + text(460, y + 17, note, {anchor: "end"});
    });
    at("tail").innerHTML = svg(460, 20 + rows.length * 38, body);
    at("tail-note").textContent = rows.length > 2 ? "The wait of a step, and the extreme-value approximations with their errors." : "The wait of a step, from the measured durations.";
  }

  // ---- words
  function drawWords(answer, loop) {
    const {balance, rebalancing: proposal, rollouts} = answer;
    const pill = at("pill"), balanced = balance.bottleneck === "balanced";
    pill.className = `pill ${balanced ? "good" : "bad"}`;
    pill.textContent = balanced ? "balanced" : `bottleneck: ${NAMES[balance.bottleneck]}`;
    const used = balance.stages.map((stage) => `${NAMES[stage.name]} ${percent(stage.utilisation)}`).join(", ");
    at("lead").textContent = `${rate(balance.throughput_per_s)} samples/s; used: ${used}.`
      + (rollouts ? rollouts.speedup < Model.SPEEDUP_MIN
        ? ` Asynchrony would bring ${rollouts.speedup.toFixed(2)}×: stay synchronous.`
        : ` Asynchrony brings ${rollouts.speedup.toFixed(2)}× over a synchronous step.` : "");
    const cards = [
      [`${rate(balance.throughput_per_s)}/s`, "samples", `${rate(balance.updates_per_s)} updates/s`],
      [dollars(balance.usd_per_million), "per million samples", `${dollars(balance.usd_per_h)} per hour`],
      [balance.replay_ratio.toFixed(2), "replay ratio", "learner over actors"],
      [short(balance.bounded.lag_updates), "lag with admission", `${grouped(balance.unbounded.lag_updates, 1)} without, after ${seconds(balance.after_s)}`],
    ];
    if (rollouts) cards.push([`${rollouts.speedup.toFixed(2)}×`, "by asynchrony", `${rate(rollouts.synchronous.samples_per_s)} → ${rate(rollouts.asynchronous.samples_per_s)} rollouts/s`]);
    at("cards").innerHTML = cards.map(([value, what, more]) => `<div class="card"><b>${value}</b><span>${what}</span><i>${more}</i></div>`).join("");
    const changed = [["actor", loop.num_actors, proposal.num_actors], ["environment worker", loop.num_environments, proposal.num_environments],
      ["learner replica", loop.num_replicas, proposal.num_replicas]].filter(([, old, next]) => old !== next)
      .map(([name, old, next]) => `${grouped(next)} ${name}${next === 1 ? "" : "s"} instead of ${grouped(old)}`);
    const more = proposal.throughput_after_per_s / proposal.throughput_before_per_s - 1;
    at("proposal").innerHTML = proposal.changes
      ? `<span><b>Run ${changed.join(" and ")}</b>: ${more > 0.005 ? `${rate(proposal.throughput_after_per_s)} samples/s (${signed(more)})` : "the same samples/s"}`
        + ` for <b>${dollars(proposal.usd_per_million_after)}</b> per million instead of ${dollars(proposal.usd_per_million_before)}`
        + ` (${signed(proposal.usd_per_million_after / proposal.usd_per_million_before - 1)}).</span><button class="strong">Apply</button>`
      : "<span><b>Nothing cheaper</b>: no other size does this work at a lower cost.</span>";
    const apply = at("proposal").querySelector("button");
    if (apply) apply.addEventListener("click", () => {
      state = {...state, num_actors: proposal.num_actors, num_environments: proposal.num_environments, num_replicas: proposal.num_replicas};
      place();
      draw();
    });
  }

  function draw() {
    const asked = question(), answer = Model.answer(asked);
    inputs.forEach((input) => input.tell());
    drawWords(answer, asked.loop);
    drawUsed(answer);
    drawLag(answer, asked.loop);
    drawCost(answer, asked.loop, asked.prices);
    drawReplicas(answer, asked.loop);
    at("rollouts").hidden = !answer.rollouts;
    if (answer.rollouts) {
      drawTimeline(answer, asked.rollouts);
      drawStep(answer);
      drawTail(answer);
    }
  }

  // ---- the page checks itself against the answer that it was written with
  const isThinned = start.rollouts && start.rollouts.rollout.type === "histogram";
  const mine = Model.answer(start);
  if (isThinned) mine.rollouts = null;
  const differs = Model.difference(mine, {...data.answer, ...(isThinned && {rollouts: null})});
  at("foot").textContent = "This page fetches nothing. "
    + (differs === null ? "The formulas of this page give the numbers that `tidegate plan` printed."
      : `This page disagrees with what \`tidegate plan\` printed at ${differs}: trust the command.`);
  document.body.dataset.agrees = differs === null ? "yes" : differs;

  buildControls();
  place();
  draw();
})();
