// What the server is asked, how often, and the addresses of pages.

const PAUSE_PER_ANSWER = 20;

/** The answer to a path below /api.
 *
 * Raises: the server's sentence.
 */
export async function ask(path) {
  const answer = await fetch(`/api/${path}`);
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.error);
  return body;
}

export const of = (run, rest = "") => `runs/${encodeURIComponent(run)}${rest}`;
export const link = (run, rest = "") => `#/run/${encodeURIComponent(run)}${rest}`;

/** Do something again and again while the page is seen; returns what ends it.
 *
 * The pause is at least `period_ms`, and twenty times as long as it took: a slow server has time for others.
 */
export function repeat(act, period_ms) {
  let timer;
  const later = (pause_ms) => (timer = setTimeout(again, pause_ms));
  let ended = false;
  async function again() {
    const begun_ms = performance.now();
    if (!document.hidden) await act().catch(() => {}); // it is tried again, and what is shown has its time
    if (!ended) later(Math.max(period_ms, PAUSE_PER_ANSWER * (performance.now() - begun_ms)));
  }
  later(period_ms);
  return () => {
    ended = true;
    clearTimeout(timer);
  };
}
