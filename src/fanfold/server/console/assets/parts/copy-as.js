/** Every action as something to copy: a command, a request, Python, a call of a tool. */
import { html, useEffect, useState } from "../vendor/preact.js";
import { post } from "../live/api.js";
import { readJson, writeJson } from "../text/json.js";
import { copy } from "./copy-button.js";
import { Dialog } from "./dialog.js";
import { Loading, Trouble } from "./states.js";

const NAMES = { cli: "Command line", http: "HTTP", python: "Python", mcp: "MCP" };

/** @typedef {{name: string, action: string, words: Record<string, unknown>}} Copied One of several that may be meant. */

/** `words` is what a form holds for the action. @param {{action: string, words: Record<string, unknown>, others?: (string | Copied)[]}} props */
export function CopyAs({ action, words, others = [] }) {
  const [open, setOpen] = useState(false);
  return html`<button type="button" class="button plain" onClick=${() => setOpen(true)}>Copy as …</button>
    ${open && html`<${CopyDialog} action=${action} others=${others} words=${words} onClose=${() => setOpen(false)} />`}`;
}

/** @param {{action: string, words: Record<string, unknown>, others: (string | Copied)[], onClose: () => void}} props */
export function CopyDialog({ action, words, others, onClose }) {
  const all = [action, ...others].map((one) => (typeof one === "string" ? { name: one, action: one, words } : one));
  const [chosen, setChosen] = useState(action);
  const [data, setData] = useState(/** @type {any} */ (null));
  const [error, setError] = useState(/** @type {any} */ (null));
  const meant = all.find((one) => one.name === chosen) || all[0];
  const asked = writeJson(given({ action: meant.action, ...meant.words }));
  useEffect(() => {
    let over = false;
    setData(null);
    setError(null);
    post("/copy", readJson(asked)).then(
      (found) => !over && setData(found),
      (failure) => !over && setError(failure),
    );
    return () => {
      over = true;
    };
  }, [asked]);
  return html`<${Dialog} title="Copy as a command, request or call" onClose=${onClose}>
    ${all.length > 1 && html`<div class="field"><label for="copied">Action</label><select id="copied" value=${chosen} onChange=${(/** @type {any} */ event) => setChosen(event.target.value)}>${all.map(({ name }) => html`<option key=${name} value=${name}>${name}</option>`)}</select></div>`}
    <${Trouble} error=${error} />
    ${!data && !error && html`<${Loading} label="Loading" />`}
    ${data && Object.entries(NAMES).filter(([key]) => data[key]).map(([key, name]) => html`<div key=${key}>
      <div class="section-head"><h3>${name}</h3><button type="button" class="button small" style=${{ marginLeft: "auto" }} onClick=${() => copy(data[key])} aria-label=${`Copy ${name}`}>Copy</button></div>
      <pre class="block" tabindex="0">${data[key]}</pre>
    </div>`)}
  </${Dialog}>`;
}

/** Without what is empty. @param {Record<string, unknown>} words */
const given = (words) => Object.fromEntries(Object.entries(words).filter(([, value]) => value !== undefined && value !== null && value !== ""));
