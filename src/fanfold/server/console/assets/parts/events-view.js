/** What was recorded, in windows: never all of it. The newest come first, and more are asked for on demand. */
import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { get, withQuery } from "../live/api.js";
import { exact } from "../text/format.js";
import { plain } from "../text/markdown.js";
import { Trouble } from "./states.js";

const PIECE = 150;
const MOST = 1500;

/** @param {{id: string, reach: number, onChoose: (path: string) => void}} props */
export function EventsView({ id, reach, onChoose }) {
  const [events, setEvents] = useState(/** @type {any[]} */ ([]));
  const [error, setError] = useState(/** @type {any} */ (null));
  const held = useRef(/** @type {any[]} */ ([]));
  const busy = useRef(false);
  const keep = (/** @type {any[]} */ next) => {
    held.current = next;
    setEvents(next);
  };
  const ask = async (/** @type {Record<string, unknown>} */ words, /** @type {(items: any[]) => any[]} */ join) => {
    if (busy.current) return;
    busy.current = true;
    try {
      const page = await get(withQuery(`/runs/${id}/events`, { ...words, limit: PIECE }));
      keep(join(page.items));
      setError(null);
    } catch (failure) {
      setError(failure);
    }
    busy.current = false;
  };
  useEffect(() => {
    const newest = held.current.at(-1)?.tree_seq;
    if (newest === undefined || newest > reach) ask({ before: reach + 1 }, (items) => items);
    else if (newest < reach) ask({ after: newest }, (items) => [...held.current, ...items].slice(-MOST));
  }, [reach, id]);
  const oldest = events[0]?.tree_seq ?? 1;
  const older = () => ask({ before: oldest }, (items) => [...items, ...held.current].slice(0, MOST));
  return html`<${Trouble} error=${error} /><div class="table-box tall" tabindex="0" role="region" aria-label="Events"><table class="events">
    <thead><tr><th scope="col" class="number">No.</th><th scope="col" class="number">When</th><th scope="col">Event</th><th scope="col">Step</th><th scope="col" class="hide-narrow">Message</th></tr></thead>
    <tbody>
      ${[...events].reverse().map((event) => html`<tr key=${event.tree_seq}>
        <td class="number">${event.tree_seq}</td><td class="number"><time datetime=${new Date(event.at).toISOString()} title=${exact(event.at)}>${exact(event.at).slice(11)}</time></td>
        <td class="kind">${event.type}${wordIn(event.data) && html` <span class="chip">${wordIn(event.data)}</span>`}</td>
        <td>${stepOf(event) && html`<button class="as-link" onClick=${() => onChoose(stepOf(event))}>${stepOf(event)}</button>`}</td>
        <td class="hide-narrow quiet">${messageIn(event.data)}</td>
      </tr>`)}
      ${oldest > 1 && html`<tr><td colspan="5"><button class="button small" onClick=${older}>${PIECE} older events</button></td></tr>`}
    </tbody>
  </table></div>`;
}

/** @param {any} data */
const wordIn = (data) => data?.status || data?.kind || "";
/** @param {any} event */
function stepOf(event) {
  const step = typeof event.data?.step === "string" ? event.data.step : "";
  return step ? (event.path ? `${event.path}/${step}` : step) : "";
}
/** @param {any} data */
function messageIn(data) {
  const text = plain(data?.error?.message || data?.summary || data?.reason);
  return text.length > 160 ? `${text.slice(0, 159)}…` : text;
}
