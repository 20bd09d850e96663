/** A unified diff, file by file, in the colours everybody knows and with the signs that need no colour. */
import { html } from "../vendor/preact.js";

/** @param {{patch: string}} props */
export function Diff({ patch }) {
  const lines = patch.replace(/\n$/, "").split("\n").slice(0, 5000);
  return html`<div class="diff" tabindex="0" role="region" aria-label="Changes">${lines.map((line) => {
    if (line.startsWith("diff --git ")) return html`<div class="file">${line.slice(11).split(" b/").pop()}</div>`;
    if (/^(index |--- |\+\+\+ |new file|deleted file|old mode|new mode|similarity)/.test(line)) return null;
    const kind = line.startsWith("@@") ? "place" : line.startsWith("+") ? "plus" : line.startsWith("-") ? "minus" : "";
    return html`<span class=${`line ${kind}`}>${line || " "}</span>`;
  })}</div>`;
}
