/** Code in colours and JSON that can be folded, each with a button that copies it. */
import { html, useState } from "../vendor/preact.js";
import { amount, asText, counted } from "../text/format.js";
import { paint } from "../text/highlight.js";
import { writeJson } from "../text/json.js";
import { copy } from "./copy-button.js";

const MOST_ENTRIES = 100;
const MAX_DEPTH = 24;
const LONG = 240;

/** @param {{text: string, language?: string, name?: string}} props */
export function Code({ text, language = "", name = "" }) {
  return html`<div class="code-box"><${Copy} text=${text} label=${name ? `Copy ${name}` : "Copy the code"} />
    <pre class="block code" tabindex="0">${paint(text, language)}</pre></div>`;
}

/** @param {{text: string, label: string}} props */
export const Copy = ({ text, label }) => html`<button type="button" class="button plain small copy" aria-label=${label} title=${label} onClick=${() => copy(text)}>Copy</button>`;

/** A value as a tree; what is deep or long is folded. An empty label: something else copies it. @param {{value: unknown, label?: string}} props */
export function Json({ value, label = "Copy the value" }) {
  return html`<div class="code-box">${label && html`<${Copy} text=${asText(value)} label=${label} />`}<div class="json block"><${Value} value=${value} depth=${0} /></div></div>`;
}

/** @param {{value: any, depth: number}} props */
function Value({ value, depth }) {
  const [all, setAll] = useState(false);
  if (typeof value === "string") return html`<${Text} text=${value} />`;
  if (value === null || typeof value !== "object") return html`<span class=${value === null || typeof value === "boolean" ? "word" : "number"}>${writeJson(value)}</span>`;
  const list = Array.isArray(value);
  /** @type {[string, any][]} */
  const entries = list ? value.map((one, i) => [String(i), one]) : Object.entries(value);
  if (!entries.length) return html`<span class="quiet">${list ? "[]" : "{}"}</span>`;
  if (depth > MAX_DEPTH) return html`<span>${writeJson(value)}</span>`;
  const shown = all ? entries : entries.slice(0, MOST_ENTRIES);
  return html`<details open=${depth === 0 || (depth < 3 && entries.length <= 12)}><summary>${list ? counted(entries.length, "item") : counted(entries.length, "key")}</summary>
    <dl>${shown.map(([name, one]) => html`<div key=${name}><dt class="key">${name}</dt><dd><${Value} value=${one} depth=${depth + 1} /></dd></div>`)}</dl>
    ${shown.length < entries.length && html`<button type="button" class="as-link small" onClick=${() => setAll(true)}>Show ${amount(entries.length - shown.length)} more</button>`}</details>`;
}

/** @param {{text: string}} props */
function Text({ text }) {
  const lines = text.includes("\n");
  if (text.length <= LONG && !lines) return html`<span class="string">${text || "\u201c\u201d"}</span>`;
  const body = html`<pre class="string">${text}</pre>`;
  return text.length <= 4 * LONG ? body : html`<details><summary>${text.slice(0, 80)}… <span class="quiet">${amount(text.length)} characters</span></summary>${body}</details>`;
}
