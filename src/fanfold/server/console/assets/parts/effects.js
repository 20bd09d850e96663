/** What needs permission: totals first, then every effect, whole. The server made each line fit to be shown. */
import { html } from "../vendor/preact.js";

/** @param {{totals: string[], needs: string[]}} props */
export function Effects({ totals, needs }) {
  return html`${totals.map((line) => html`<p key=${line}><strong>${line}</strong></p>`)}
    <ol class="effects">${needs.map((line, i) => html`<li key=${i}><code>${line}</code></li>`)}</ol>`;
}
