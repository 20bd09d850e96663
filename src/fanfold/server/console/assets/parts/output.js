/** The output of a step or run: text as Markdown, anything else as a tree of JSON. Never markup. */
import { html, useState } from "../vendor/preact.js";
import { asText } from "../text/format.js";
import { Markdown, isFormatted } from "../text/markdown.js";
import { Json } from "./code.js";
import { copy } from "./copy-button.js";

/** @param {{value: unknown, empty?: string}} props */
export function Output({ value, empty = "There is no output yet." }) {
  const [raw, setRaw] = useState(false);
  if (value === null || value === undefined || value === "") return html`<p class="quiet">${empty}</p>`;
  const text = asText(value);
  const isText = typeof value === "string";
  const folds = isText ? isFormatted(value) : typeof value === "object";
  return html`<div class="output">
    <div class="actions">
      ${folds && html`<button class="button plain small" aria-pressed=${raw ? "true" : "false"} onClick=${() => setRaw(!raw)}>${raw ? "Formatted" : "As text"}</button>`}
      <button class="button plain small" onClick=${() => copy(text)}>Copy</button>
    </div>
    ${raw || !folds ? html`<pre class="block" tabindex="0">${text}</pre>` : isText ? html`<${Markdown} text=${text} />` : html`<${Json} value=${value} label="" />`}
  </div>`;
}
