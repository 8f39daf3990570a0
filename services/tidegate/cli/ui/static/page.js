// Routes, the navigation, and keys.

import { releaseCharts } from "./charts.js";
import { el, fill } from "./elements.js";
import { overview } from "./overview.js";
import { compare, runs } from "./runs.js";
import { trajectories, versions } from "./trajectories.js";
import { trajectory } from "./trajectory.js";

const page = document.getElementById("page");
const sections = document.getElementById("sections");
const help = document.getElementById("help");
const G_WAITS_MS = 1000;

let stop = () => {};
let opened = 0;
let shownAt = null;
let gAt = -G_WAITS_MS;

function route() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [kind, run, view, id] = path.split("/").map(decoded);
  return { kind, run, view: view ?? "", id, query: new URLSearchParams(query) };
}

/** A part of the address; one that was cut inside of an escape is taken as it is. */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

const VIEWS = {
  "": (show, where) => overview(show, where.run),
  trajectories: (show, where) => trajectories(show, where.run, where.query),
  trajectory: (show, where) => trajectory(show, where.run, where.id),
  versions: (show, where) => versions(show, where.run, where.query),
};

function viewOf(show, where) {
  if (where.kind === "run" && VIEWS[where.view]) return VIEWS[where.view](show, where);
  const names = where.kind === "compare" ? where.query.getAll("run") : [];
  return names.length ? compare(show, names) : runs(show);
}

function addresses(run) {
  const base = `#/run/${encodeURIComponent(run)}`;
  return { Overview: base, Trajectories: `${base}/trajectories`, Versions: `${base}/versions` };
}

function navigate(where) {
  const shown = { "": "Overview", trajectories: "Trajectories", trajectory: "Trajectories", versions: "Versions" };
  const links = where.kind === "run" ? Object.entries(addresses(where.run)) : [];
  const all = [["Runs", "#/"], ...links];
  const current = where.kind === "run" ? shown[where.view] : "Runs";
  fill(
    sections,
    ...all.map(([name, href]) => el("a", { href, "aria-current": name === current && "page" }, name)),
  );
}

/** What replaces the page: from its top at a new address, with the focus there for readers of the screen. */
function replacePage(children) {
  const isNew = shownAt !== null && shownAt !== location.hash;
  const hadFocus = page.contains(document.activeElement);
  releaseCharts(page);
  fill(page, ...children);
  if (isNew) window.scrollTo(0, 0);
  if (isNew || hadFocus) page.focus({ preventScroll: true });
  shownAt = location.hash;
}

async function open() {
  stop();
  stop = () => {};
  const mine = ++opened;
  const where = route();
  // An answer that comes after the next page was opened is not shown.
  const show = (...children) => mine === opened && replacePage(children);
  navigate(where);
  document.title = [where.kind === "run" && where.run, where.kind === "compare" && "Comparison", "Tidegate"]
    .filter(Boolean)
    .join(" · ");
  try {
    const ended = (await viewOf(show, where)) ?? (() => {});
    if (mine === opened) stop = ended;
    else ended();
  } catch (error) {
    show(el("div", { class: "note bad" }, el("p", {}, error.message)));
  }
}

function focusRow(step) {
  const rows = [...page.querySelectorAll("[data-open]")];
  if (!rows.length) return;
  const at = rows.indexOf(document.activeElement);
  rows[Math.max(0, Math.min(rows.length - 1, at + step))].focus();
}

function afterG(key) {
  const where = route();
  const goals = where.kind === "run" ? Object.values(addresses(where.run)) : [];
  const goal = { r: "#/", o: goals[0], t: goals[1], v: goals[2] }[key];
  if (goal) location.hash = goal;
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
  if (event.target.closest("input:not([type=checkbox]), select")) {
    if (event.key === "Escape") page.focus({ preventScroll: true });
    return;
  }
  if (performance.now() - gAt < G_WAITS_MS) {
    gAt = -G_WAITS_MS;
    return afterG(event.key);
  }
  if (event.key === "Enter") {
    // Links and buttons have their own meaning of it.
    if (event.target.dataset.open) location.hash = event.target.dataset.open;
    return;
  }
  const acts = {
    j: () => focusRow(1),
    k: () => focusRow(-1),
    "/": () => page.querySelector("form.filter select, form.filter input")?.focus(),
    g: () => (gAt = performance.now()),
    n: () => page.querySelector('[data-key="n"]')?.click(),
    p: () => page.querySelector('[data-key="p"]')?.click(),
    "?": () => help.showModal(),
  };
  if (acts[event.key]) {
    event.preventDefault();
    acts[event.key]();
  }
});
document.getElementById("keys").addEventListener("click", () => help.showModal());
help.addEventListener("click", (event) => event.target === help && help.close()); // beside its content
window.addEventListener("hashchange", open);
// Charts have the colours of the moment at which they were drawn.
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", open);
open();
