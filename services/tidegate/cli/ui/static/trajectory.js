// The page of one trajectory.

import { ask, link, of } from "./asking.js";
import { el, fill, number, opensRow, pill, seconds, section, table } from "./elements.js";

// Percent of the colour of the strongest token: with more, light text on it is hard to read in the dark form.
const SHADE_MAX = 45;

export async function trajectory(show, run, id) {
  const found = await ask(of(run, `/trajectories/${encodeURIComponent(id)}`));
  const facts = [
    ["outcome", found.sentence],
    ["task", `${found.task_id}, attempt ${found.attempt}${found.actor_id ? `, by ${found.actor_id}` : ""}`],
    ["environment", `${found.env_id || "–"}, ${found.num_steps} ${found.length_tokens ? "tokens" : "steps"}`],
    ["versions", found.spans.map((span) => `${span.version.lineage}@${span.version.step} for [${span.start}, ${span.stop})`).join(", ") || "–"],
    ["reward", found.reward === null ? null : number(found.reward, 5)],
    ...Object.entries(found.reward_components ?? {}).map(([name, value]) => [`reward: ${name}`, number(value, 5)]),
    ["verifier", found.verifier_log],
    ["finish", found.finish_reason],
    ["answer", found.answer],
  ].filter(([, value]) => value !== "" && value !== undefined && value !== null);
  const list = el("dl", { class: "facts" }, facts.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
  const words = el("div", { class: "words" }, found.completion || "");
  const legend = el("p", { class: "legend" });
  show(
    el("header", {}, el("h1", {}, id), outcome(found)),
    el("section", { class: "wide" }, list),
    stages(found.stages),
    found.prompt ? section("Prompt", conversation(found.prompt)) : null,
    found.length_tokens ? section("Completion", legend, words) : null,
    found.tool_calls?.length ? section("Tool calls", toolCalls(found.tool_calls)) : null,
    found.group.length ? group(run, found.group, id) : null,
  );
  if (found.length_tokens) await drawTokens(run, id, words, legend);
}

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
  const gaps = found.tokens.map((token) => Math.abs(token.gap ?? 0));
  const largest = gaps.reduce((most, gap) => Math.max(most, gap), 0);
  const legends = {
    likelihood: "The stronger the colour of a token, the less likely the policy was to choose it;",
    gap: `The stronger the colour of a token, the further the learner's log-probability was from the actor's when it made ${found.gaps_version}, at most ${number(largest)} nats;`,
  };
  const strengths = {
    likelihood: (token) => (token.logprob === null ? 0 : Math.min(1, -token.logprob / 5)),
    gap: (token) => (token.gap === null ? 0 : Math.abs(token.gap) / (largest || 1)),
  };
  const colours = el("select", { "aria-label": "What the colour of a token shows", on: { change: () => draw(colours.value) } });
  fill(colours, el("option", { value: "likelihood" }, "likelihood"), el("option", { value: "gap" }, "gap to the learner"));
  const meaning = el("span");
  const shades = found.gaps_version ? ["colours: ", colours, " "] : [];
  fill(legend, ...found.spans.map((version, index) => el("span", { class: `v${index % 8}` }, version)), ...shades, meaning);
  const draw = (choice) => {
    fill(meaning, `${legends[choice]} replies of the environment are in italics.`);
    drawWords(words, found, strengths[choice]);
  };
  draw("likelihood");
}

/** The tokens in `words`, each with a colour as strong as `strength` of it says, from 0 to 1. */
function drawWords(words, found, strength) {
  fill(
    words,
    ...found.tokens.flatMap((token) => {
      const gap = token.gap === null ? "" : `, the learner's ${token.gap < 0 ? "" : "+"}${number(token.gap)}`;
      const title = token.chosen ? `${found.spans[token.span]}, log-probability ${number(token.logprob)}${gap}` : "reply";
      const element = el("span", { class: token.chosen ? `v${token.span % 8}` : "reply", title }, token.text);
      if (token.chosen) {
        element.style.backgroundColor = `color-mix(in srgb, var(--series-2) ${Math.round(SHADE_MAX * strength(token))}%, transparent)`;
      }
      return token.begins ? [el("p", { class: "hint" }, "Another conversation of the same episode:"), element] : [element];
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

/** The samples of one task side by side, this one marked. */
function group(run, members, id) {
  const rewards = members.map(({ row }) => row.reward).filter((reward) => reward !== null);
  const mean = rewards.length ? rewards.reduce((sum, each) => sum + each, 0) / rewards.length : null;
  const cards = members.map(({ row, completion, finish_reason }) => {
    const isThis = row.trajectory_id === id;
    const address = link(run, `/trajectory/${encodeURIComponent(row.trajectory_id)}`);
    const facts = [
      `reward ${number(row.reward, 4)}`,
      row.length_tokens ? `${number(row.length_tokens)} tokens` : `${number(row.num_steps)} steps`,
      row.lag === null ? null : `lag ${row.lag}`,
      finish_reason || null,
    ];
    return el(
      "div",
      { class: "member", "aria-current": isThis && "true", "data-open": isThis ? null : address, tabindex: -1, on: { click: opensRow } },
      el("header", {}, isThis ? el("b", {}, row.trajectory_id) : el("a", { href: address }, row.trajectory_id), outcome(row)),
      el("p", {}, facts.filter(Boolean).join(" · ")),
      el("div", { class: "words" }, completion),
    );
  });
  return section(`Group of ${members.length}, mean reward ${number(mean, 4)}`, el("div", { class: "group" }, cards));
}

const outcome = (row) => pill(row.state === "dropped" ? "bad" : "good", row.state + (row.reason ? `: ${row.reason}` : ""));
