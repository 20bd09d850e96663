/** Every action as something to copy: a command, a request, Python, a call of a tool. */
import { html, useState } from "../vendor/preact.js";
import { withQuery } from "../live/api.js";
import { useResource } from "../live/resource.js";
import { say } from "../shell/said.js";
import { Dialog } from "./dialog.js";
import { Loaded } from "./states.js";

const NAMES = { cli: "Command line", http: "HTTP", python: "Python", mcp: "MCP" };

/** @param {string} text */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    say("Copied.");
  } catch {
    say("The browser did not let the page copy; mark the text instead.", { tone: "wants" });
  }
}

/** @param {{action: string, words: Record<string, unknown>, others?: string[]}} props */
export function CopyAs({ action, words, others = [] }) {
  const [open, setOpen] = useState(false);
  return html`<button class="button plain" onClick=${() => setOpen(true)}>Copy as …</button>
    ${open && html`<${CopyDialog} action=${action} others=${others} words=${words} onClose=${() => setOpen(false)} />`}`;
}

/** @param {{action: string, words: Record<string, unknown>, others: string[], onClose: () => void}} props */
export function CopyDialog({ action, words, others, onClose }) {
  const [chosen, setChosen] = useState(action);
  const found = useResource(withQuery("/copy", { action: chosen, ...words }));
  return html`<${Dialog} title="The same from elsewhere" onClose=${onClose}>
    ${others.length > 0 && html`<div class="field"><label for="copied">Action</label><select id="copied" value=${chosen} onChange=${(/** @type {any} */ event) => setChosen(event.target.value)}>${[action, ...others].map((one) => html`<option key=${one} value=${one}>${one}</option>`)}</select></div>`}
    <${Loaded} of=${found}>${(/** @type {any} */ data) => Object.entries(NAMES).filter(([key]) => data[key]).map(([key, name]) => html`<div key=${key}>
      <div class="section-head"><h3>${name}</h3><button class="button small" style=${{ marginLeft: "auto" }} onClick=${() => copy(data[key])} aria-label=${`Copy ${name}`}>Copy</button></div>
      <pre class="block" tabindex="0">${data[key]}</pre>
    </div>`)}</${Loaded}>
  </${Dialog}>`;
}
