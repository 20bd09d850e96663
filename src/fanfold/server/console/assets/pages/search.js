/** Search over what agents wrote, in one run or all of them. */
import { html, useEffect, useLayoutEffect, useRef, useState } from "../vendor/preact.js";
import { withQuery } from "../live/api.js";
import { useResource } from "../live/resource.js";
import { Empty, Loaded } from "../parts/states.js";
import { PageHead } from "../shell/frame.js";
import { query, setQuery } from "../shell/route.js";
import { announce } from "../shell/notices.js";
import { counted } from "../text/format.js";
import { plain } from "../text/markdown.js";

/** The words that were looked for, marked where they stand. @param {string} text @param {string} words */
function marked(text, words) {
  const wanted = words.toLowerCase().match(/[\p{L}\p{N}_]+/gu) || [];
  const pieces = text.split(/([\p{L}\p{N}_]+)/u);
  return pieces.map((piece) => (wanted.some((word) => piece.toLowerCase().startsWith(word)) ? html`<mark>${piece}</mark>` : piece));
}

export function Search() {
  const words = query.value.get("q") || "";
  const run = query.value.get("run") || "";
  const [typed, setTyped] = useState(words);
  const field = useRef(/** @type {HTMLInputElement | null} */ (null));
  const found = useResource(words.trim() ? withQuery("/search", { q: words, run, k: 30 }) : null);
  // With the page, not after it: the user who pressed / continues to type.
  useLayoutEffect(() => field.current?.focus(), []);
  const sent = useRef(words);
  useEffect(() => {
    if (words !== sent.current) setTyped((sent.current = words)); // the way back, or a link
  }, [words]);
  useEffect(() => {
    const timer = setTimeout(() => {
      sent.current = typed;
      setQuery({ q: typed });
    }, 250);
    return () => clearTimeout(timer);
  }, [typed]);
  useEffect(() => {
    if (found.data) announce(counted(found.data.hits.length, "hit"));
  }, [found.data]);
  return html`<div class="page">
    <${PageHead} title="Search" lead="Search the outputs of all steps." />
    <form role="search" onSubmit=${(/** @type {Event} */ event) => event.preventDefault()} class="filters">
      <input id="words" ref=${field} type="search" aria-label="Words" placeholder="Words that an agent wrote" value=${typed} onInput=${(/** @type {any} */ event) => setTyped(event.target.value)} />
      ${run && html`<span class="chip">only in ${run} <button class="as-link" type="button" onClick=${() => setQuery({ run: null })}>all runs</button></span>`}
    </form>
    ${words.trim() ? html`<${Loaded} of=${found}>${(/** @type {any} */ data) => data.hits.length ? html`<ul class="card list">${data.hits.map((/** @type {any} */ hit) => html`<li key=${`${hit.run_id} ${hit.path}`}>
      <div class="grow"><a class="title" href=${`/runs/${hit.run_id}?step=${encodeURIComponent(hit.path)}`}>${hit.path}</a> <span class="quiet small">${hit.role || ""} · <span class="mono">${hit.run_id}</span></span><div class="excerpt">${marked(plain(hit.excerpt), words)}</div></div>
    </li>`)}</ul>` : html`<${Empty} title="No output matches"><p>The search covers the outputs of finished steps; one matching word is enough.</p></${Empty}>`}</${Loaded}>` : html`<${Empty} title="Find what agents wrote"><p>The outputs of all runs are searched, also of old ones. On the command line: <code>fanfold query WORDS</code>.</p></${Empty}>`}
  </div>`;
}
