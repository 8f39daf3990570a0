// The planner as the page asks it: plain objects in, the translated formulas, plain numbers out.
const Model = (() => {
  const KINDS = {fixed: Fixed, exponential: Exponential, lognormal: Lognormal, histogram: Histogram};
  const durations = (data) => data && new KINDS[data.type](data);
  const question = ({loop, prices, rollouts, ...rest}) => new PlanQuestion({
    ...rest, loop: new Loop(loop), prices: new Prices(prices),
    rollouts: rollouts && new RolloutLoop({...rollouts, rollout: durations(rollouts.rollout), reward: durations(rollouts.reward)}),
  });

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

  return {
    answer: (data) => work_out(question(data)), capacities, difference, replicasMax: replicas_max,
    meanOf: (data) => durations(data).mean_s, speedup, throughput, usdPerMillion: usd_per_million,
    usdPerHour: (loop, prices) => usd_per_h(loop, new Prices(prices)), SPEEDUP_MIN,
  };
})();
if (typeof module !== "undefined") module.exports = Model;
