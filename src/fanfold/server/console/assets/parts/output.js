/** What a step or run put out: text as Markdown, anything else as JSON. Never markup. */
import { html, useState } from "../vendor/preact.js";
import { asText } from "../text/format.js";
import { Markdown, isFormatted } from "../text/markdown.js";
import { copy } from "./copy-as.js";

/** @param {{value: unknown, empty?: string}} props */
export function Output({ value, empty = "There is no output yet." }) {
  const [raw, setRaw] = useState(false);
  if (value === null || value === undefined || value === "") return html`<p class="quiet">${empty}</p>`;
  const text = asText(value);
  const isText = typeof value === "string" && isFormatted(value);
  return html`<div class="output">
    <div class="actions">
      ${isText && html`<button class="button plain small" aria-pressed=${raw ? "true" : "false"} onClick=${() => setRaw(!raw)}>${raw ? "Formatted" : "As text"}</button>`}
      <button class="button plain small" onClick=${() => copy(text)}>Copy</button>
    </div>
    ${isText && !raw ? html`<${Markdown} text=${text} />` : html`<pre class="block" tabindex="0">${text}</pre>`}
  </div>`;
}
