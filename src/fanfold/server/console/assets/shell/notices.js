/** Messages of the page: for screen readers, and as notices for a while. */
import { html, signal } from "../vendor/preact.js";

/** @type {import("../vendor/preact.js").Signal<{id: number, text: string, hint: string, tone: string}[]>} */
const notes = signal([]);
let count = 0;

/** For readers of screens. @param {string} text */
export function announce(text) {
  const region = document.getElementById("announcements");
  if (region) region.textContent = text;
}

/** A note that stays a while. @param {string} text @param {{tone?: string, hint?: string}} [how] */
export function notify(text, how = {}) {
  const note = { id: (count += 1), text, hint: how.hint || "", tone: how.tone || "" };
  notes.value = [...notes.value.slice(-2), note];
  announce(text);
  setTimeout(() => (notes.value = notes.value.filter((one) => one.id !== note.id)), how.tone === "failed" ? 12000 : 6000);
}

/** @param {any} error */
export const notifyError = (error) => notify(error.message, { tone: "failed", hint: error.hint });

export function Notes() {
  return html`<div class="toasts">
    ${notes.value.map((note) => html`<div class=${`toast tone-${note.tone}`} key=${note.id}>
      ${note.text}${note.hint && html`<div class="quiet small">${note.hint}</div>`}
    </div>`)}
  </div>`;
}
