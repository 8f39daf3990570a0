"use strict";
// The planner's formulas, as in core/planner: the page asks them at every move of a slider. tests/unit/cli/plan holds
// them against the Python ones, and the page itself compares its first answer with the one it was written with.
const Model = (() => {
  const LOSS_PER_REPLICA = 0.04, REPLICAS_MAX = 13, BALANCED_WITHIN = 0.02;
  const DEVIATIONS = 9, INTERVALS = 2000, EULER_GAMMA = 0.5772156649015329;
  const SAVING_MIN = 0.005, SLACK = 1e-9, WORKERS_TRIED_MAX = 256, SPEEDUP_MIN = 1.1;

  const replicasMax = (curve) => (curve.length ? curve[curve.length - 1][0] : REPLICAS_MAX);

  function speedup(replicas, curve) {
    if (!curve.length) return replicas * (1 - LOSS_PER_REPLICA * (replicas - 1));
    const index = curve.findIndex((point) => point[0] >= replicas);
    const upper = curve[index];
    if (upper[0] === replicas) return upper[1];
    const lower = curve[index - 1];
    return lower[1] + (upper[1] - lower[1]) * (replicas - lower[0]) / (upper[0] - lower[0]);
  }

  function capacities(loop) {
    const stages = [["actor", loop.num_actors, loop.num_actors * loop.actor_rate]];
    if (loop.num_environments)
      stages.push(["environment", loop.num_environments, loop.num_environments * loop.environment_rate]);
    if (loop.store_rate) stages.push(["store", 1, loop.store_rate]);
    stages.push(["learner", loop.num_replicas, loop.learner_rate * speedup(loop.num_replicas, loop.scaling)]);
    return stages;
  }

  const throughput = (loop) => Math.min(...capacities(loop).map((stage) => stage[2]));

  const usdPerHour = (loop, prices) =>
    loop.num_actors * prices.actor_usd_per_h + loop.num_environments * prices.environment_usd_per_h +
    loop.num_replicas * prices.learner_usd_per_h;

  const usdPerMillion = (usd, perSecond) => usd / 3600 / perSecond * 1e6;

  function binding(stages) {
    const slowest = Math.min(...stages.map((stage) => stage[2]));
    if (Math.max(stages[0][2], stages[stages.length - 1][2]) <= slowest * (1 + BALANCED_WITHIN)) return "balanced";
    return stages.filter((stage) => stage[2] === slowest).pop()[0];
  }

  function balance(loop, prices, afterS) {
    const stages = capacities(loop), rate = throughput(loop);
    const surplus = Math.max(0, stages[0][2] - rate), queue = surplus * afterS, lag = queue / loop.batch_size;
    const usd = usdPerHour(loop, prices);
    return {
      throughput_per_s: rate,
      updates_per_s: rate / loop.batch_size,
      bottleneck: binding(stages),
      stages: stages.map(([name, count, capacity]) =>
        ({name, count, capacity_per_s: capacity, utilisation: rate / capacity})),
      replay_ratio: stages[stages.length - 1][2] / stages[0][2],
      after_s: afterS,
      unbounded: {queue, lag_updates: lag},
      bounded: {
        queue: Math.min(queue, (loop.max_lag + 1) * loop.batch_size),
        lag_updates: Math.min(lag, loop.max_lag),
      },
      budget_lasts_s: surplus > 0 ? loop.max_lag * loop.batch_size / surplus : null,
      usd_per_h: usd,
      usd_per_million: usdPerMillion(usd, rate),
    };
  }

  function replicasNeeded(loop) {
    const others = Math.min(...capacities(loop).filter((stage) => stage[0] !== "learner").map((stage) => stage[2]));
    for (let replicas = 1; replicas <= replicasMax(loop.scaling); replicas += 1)
      if (loop.learner_rate * speedup(replicas, loop.scaling) >= others) return replicas;
    return null;
  }

  const ceilingOf = (loop) =>
    Math.min(...capacities(loop).filter(([name]) => name === "learner" || name === "store").map((stage) => stage[2]));

  const beside = (rate, one) =>
    [Math.max(1, Math.floor(rate / one + SLACK)), Math.max(1, Math.ceil(rate / one - SLACK))];

  const ascending = (counts) => [...new Set(counts)].sort((one, other) => one - other);

  function workerCounts(loop, ceiling, wanted) {
    if (!loop.num_environments) return [0];
    const enough = beside(ceiling, loop.environment_rate)[1];
    const counts = enough <= WORKERS_TRIED_MAX
      ? Array.from({length: enough}, (_, index) => index + 1)
      : [enough, ...beside(wanted, loop.environment_rate)];
    return ascending([loop.num_environments, ...counts]);
  }

  // Python rounds the cost to nine digits before it compares; so does this.
  const nineDigits = (cost) => Math.round(cost * 1e9);

  function rebalance(loop, prices, targetPerS) {
    const counts = Array.from({length: replicasMax(loop.scaling)}, (_, index) => index + 1);
    const withinReach = Math.max(...counts.map((replicas) => ceilingOf({...loop, num_replicas: replicas})));
    const target = targetPerS <= withinReach ? targetPerS : 0;
    const wanted = Math.max(throughput(loop), target) * (1 - SLACK);
    const costOf = (each) => usdPerMillion(usdPerHour(each, prices), throughput(each));
    const keyOf = (each) => [
      throughput(each) < wanted ? 1 : 0, nineDigits(costOf(each)),
      Math.abs(each.num_actors - loop.num_actors) + Math.abs(each.num_environments - loop.num_environments) +
        Math.abs(each.num_replicas - loop.num_replicas)];
    const isLess = (one, other) => {
      for (let index = 0; index < one.length; index += 1)
        if (one[index] !== other[index]) return one[index] < other[index];
      return false;
    };
    let best = loop, bestKey = keyOf(loop);
    for (const replicas of counts) {
      const resized = {...loop, num_replicas: replicas}, ceiling = ceilingOf(resized);
      for (const workers of workerCounts(loop, ceiling, wanted)) {
        const reach = workers ? Math.min(ceiling, workers * loop.environment_rate) : ceiling;
        const near = [...beside(reach, loop.actor_rate), ...beside(wanted, loop.actor_rate)];
        for (const actors of ascending([loop.num_actors, ...near])) {
          const candidate = {...resized, num_actors: actors, num_environments: workers};
          const key = keyOf(candidate);
          if (isLess(key, bestKey)) { best = candidate; bestKey = key; }
        }
      }
    }
    const before = costOf(loop);
    let after = costOf(best), saving = before > 0 ? 1 - after / before : 0;
    if (throughput(loop) >= wanted && saving < SAVING_MIN) { best = loop; after = before; saving = 0; }
    return {
      changes: best !== loop && (best.num_actors !== loop.num_actors || best.num_replicas !== loop.num_replicas ||
        best.num_environments !== loop.num_environments),
      num_actors: best.num_actors, num_environments: best.num_environments, num_replicas: best.num_replicas,
      throughput_before_per_s: throughput(loop), throughput_after_per_s: throughput(best),
      usd_per_h_before: usdPerHour(loop, prices), usd_per_h_after: usdPerHour(best, prices),
      usd_per_million_before: before, usd_per_million_after: after, saving,
    };
  }

  // erf by its series near zero, erfc by Lentz's continued fraction further out: double precision in both.
  function erfc(x) {
    if (x < 0) return 2 - erfc(-x);
    if (x > 27) return 0;
    if (x < 2.5) {
      let term = x, sum = x;
      for (let n = 1; Math.abs(term) > 1e-17 * Math.abs(sum); n += 1) {
        term *= -x * x / n;
        sum += term / (2 * n + 1);
      }
      return 1 - 2 / Math.sqrt(Math.PI) * sum;
    }
    let fraction = 0;
    for (let n = 60; n >= 1; n -= 1) fraction = n / 2 / (x + fraction);
    return Math.exp(-x * x) / Math.sqrt(Math.PI) / (x + fraction);
  }

  // Lanczos, g = 7, nine terms.
  function gamma(z) {
    if (z < 0.5) return Math.PI / (Math.sin(Math.PI * z) * gamma(1 - z));
    const terms = [0.99999999999980993, 676.5203681218851, -1259.1392167224028, 771.32342877765313,
      -176.61502916214059, 12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7];
    const x = z - 1, t = x + 7.5;
    const sum = terms.reduce((total, term, index) => (index ? total + term / (x + index) : term), 0);
    return Math.sqrt(2 * Math.PI) * t ** (x + 0.5) * Math.exp(-t) * sum;
  }

  const logSd = (durations) => Math.sqrt(Math.log1p(durations.c * durations.c));

  function harmonic(count) {
    if (count > 10000) return Math.log(count) + EULER_GAMMA + 1 / (2 * count) - 1 / (12 * count * count);
    let sum = 0;
    for (let number = count; number >= 1; number -= 1) sum += 1 / number;
    return sum;
  }

  const meanOf = (durations) => {
    if (durations.type === "fixed") return durations.value_s;
    if (durations.type !== "histogram") return durations.mean_s;
    const {edges_s: edges, counts} = durations;
    return counts.reduce((sum, count, index) => sum + count * (edges[index] + edges[index + 1]) / 2, 0)
      / counts.reduce((sum, count) => sum + count, 0);
  };

  function lognormalMax(durations, draws) {
    const s = logSd(durations);
    if (s === 0 || durations.mean_s === 0) return durations.mean_s;
    const low = -DEVIATIONS, high = DEVIATIONS + Math.sqrt(2 * Math.log(draws)), step = (high - low) / INTERVALS;
    let sum = 0;
    for (let index = 0; index <= INTERVALS; index += 1) {
      const y = low + index * step;
      const weight = index === 0 || index === INTERVALS ? 1 : (index % 2 ? 4 : 2);
      const below = 0.5 * erfc(-(y + s) / Math.SQRT2);
      sum += weight * Math.exp(-0.5 * y * y) / Math.sqrt(2 * Math.PI) * below ** (draws - 1);
    }
    return durations.mean_s * draws * sum * step / 3;
  }

  function meanOfMax(durations, draws) {
    if (durations.type === "fixed") return durations.value_s;
    if (durations.type === "exponential") return durations.mean_s * harmonic(draws);
    if (durations.type === "lognormal") return lognormalMax(durations, draws);
    const {edges_s: edges, counts} = durations, total = counts.reduce((sum, count) => sum + count, 0);
    let slowest = edges[0], seen = 0;
    counts.forEach((count, index) => {
      const p = seen / total, q = (seen + count) / total, width = edges[index + 1] - edges[index];
      const below = q > p ? (q ** (draws + 1) - p ** (draws + 1)) / ((draws + 1) * (q - p)) : q ** draws;
      slowest += width && width * (1 - below);
      seen += count;
    });
    return slowest;
  }

  function leading(durations, draws) {
    if (durations.type === "exponential") return durations.mean_s * Math.log(draws);
    if (durations.type === "fixed" || durations.type === "histogram") return null;
    const s = logSd(durations);
    return durations.mean_s * Math.exp(s * Math.sqrt(2 * Math.log(draws)) - s * s / 2);
  }

  function gumbel(durations, draws) {
    if (durations.type === "exponential") return durations.mean_s * (Math.log(draws) + EULER_GAMMA);
    if (durations.type === "fixed" || durations.type === "histogram" || draws < 2) return null;
    const s = logSd(durations), a = Math.sqrt(2 * Math.log(draws));
    if (s >= a) return null;
    const b = a - Math.log(4 * Math.PI * Math.log(draws)) / (2 * a);
    return durations.mean_s * Math.exp(s * b - s * s / 2) * gamma(1 - s / a);
  }

  function tail(durations, draws) {
    const exact = meanOfMax(durations, draws), first = leading(durations, draws), limit = gumbel(durations, draws);
    const errorOf = (value) => (value === null || exact <= 0 ? null : value / exact - 1);
    return {
      num_draws: draws, mean_s: meanOf(durations), max_s: exact,
      leading_s: first, leading_error: errorOf(first), gumbel_s: limit, gumbel_error: errorOf(limit),
    };
  }

  function synchronous(loop, mean) {
    const atOnce = Math.min(loop.group, loop.num_slots), work = loop.group * mean / atOnce;
    const rolloutTail = work - mean + meanOfMax(loop.rollout, atOnce);
    const rewardTail = loop.reward ? meanOfMax(loop.reward, loop.group) : 0;
    const wall = rolloutTail + rewardTail + loop.train_s + loop.weight_sync_s;
    return {
      work_s: work, straggler_wait_s: rolloutTail - work, reward_tail_s: rewardTail, learner_stall_s: loop.train_s,
      weight_sync_s: loop.weight_sync_s, rollout_tail_s: rolloutTail, wall_s: wall, samples_per_s: loop.group / wall,
      actor_idle_ratio: 1 - loop.group * mean / (loop.num_slots * wall), learner_idle_ratio: 1 - loop.train_s / wall,
    };
  }

  function asynchronous(loop, mean, synchronousWall) {
    const {group, num_slots: slots, max_lag: maxLag} = loop;
    const after = (loop.reward ? meanOf(loop.reward) : 0) + loop.train_s + loop.weight_sync_s;
    const actors = group * mean / slots + loop.weight_sync_s, free = Math.max(actors, loop.train_s);
    const growing = loop.train_s > actors;
    const others = loop.train_s + loop.weight_sync_s === 0 ? slots - 1 : slots;
    const natural = growing ? null : others / group + after / free;
    const underWay = (maxLag + 1) * group - (group - 1) / 2;
    const admitted = maxLag ? group * (mean + after) / underWay : synchronousWall;
    const wall = Math.max(free, admitted), lag = Math.min(maxLag, natural === null ? Infinity : natural);
    const penalty = loop.penalty_per_version * Math.max(0, lag - loop.lag_wall);
    return {
      wall_s: wall, effective_wall_s: wall * (1 + penalty), samples_per_s: group / wall,
      bound_by: admitted > free ? "admission" : (growing ? "learner" : "actors"),
      natural_lag: natural, lag_mean: lag, freshness: 1 / (1 + penalty),
      actor_idle_ratio: 1 - Math.min(1, group * mean / (slots * wall)), learner_idle_ratio: 1 - loop.train_s / wall,
    };
  }

  function rollouts(loop) {
    const mean = meanOf(loop.rollout), inTurn = synchronous(loop, mean);
    const overlapped = asynchronous(loop, mean, inTurn.wall_s);
    const terms = {rollouts: inTurn.work_s, stragglers: inTurn.straggler_wait_s, rewards: inTurn.reward_tail_s,
      train: inTurn.learner_stall_s, weights: inTurn.weight_sync_s};
    const dominant = Object.keys(terms).reduce((best, term) => (terms[term] > terms[best] ? term : best));
    return {
      tail: tail(loop.rollout, Math.min(loop.group, loop.num_slots)),
      synchronous: inTurn, asynchronous: overlapped, speedup: inTurn.wall_s / overlapped.effective_wall_s,
      dominant, dominant_share: terms[dominant] / inTurn.wall_s,
    };
  }

  function answer(question) {
    return {
      balance: balance(question.loop, question.prices, question.after_s),
      learner_free_at: replicasNeeded(question.loop),
      rebalancing: rebalance(question.loop, question.prices, question.target_per_s),
      rollouts: question.rollouts ? rollouts(question.rollouts) : null,
    };
  }

  // Where two answers differ by more than rounding, as a path; null where they agree. Only what `mine` has is compared.
  function difference(mine, theirs, path = "") {
    if (typeof mine === "number" && typeof theirs === "number")
      return Math.abs(mine - theirs) <= 1e-7 * Math.max(1, Math.abs(theirs)) ? null : path;
    if (mine === null || typeof mine !== "object") return mine === theirs ? null : path;
    for (const key of Object.keys(mine)) {
      const found = theirs === null || theirs === undefined ? path : difference(mine[key], theirs[key], `${path}.${key}`);
      if (found !== null) return found;
    }
    return null;
  }

  return {answer, balance, meanOf, capacities, difference, rebalance, replicasMax, rollouts, speedup, tail, throughput,
    usdPerHour, usdPerMillion, SPEEDUP_MIN};
})();
if (typeof module !== "undefined") module.exports = Model;
