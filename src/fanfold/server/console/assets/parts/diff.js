/** A unified diff, file by file, in the colours everybody knows and with the signs that need no colour. */
import { html } from "../vendor/preact.js";
import { amount, counted } from "../text/format.js";

const MOST_LINES = 5000;
/** A file with more lines is closed until somebody opens it. */
const LONG = 400;

/**
 * @typedef {{number: string, text: string, kind: string}} Line
 * @typedef {{name: string, kind: string, lines: Line[], plus: number, minus: number}} ChangedFile
 */

/** `command` shows all of it where a page does not. @param {{patch: string, command: string}} props */
export function Diff({ patch, command }) {
  const files = filesOf(patch);
  const lines = files.reduce((sum, file) => sum + file.lines.length, 0);
  let room = MOST_LINES;
  return html`<div class="diff">
    <p class="small quiet">${counted(files.length, "file")} <${Counts} plus=${sum(files, "plus")} minus=${sum(files, "minus")} /></p>
    ${files.map((file) => {
      const shown = file.lines.slice(0, Math.max(0, room));
      room -= shown.length;
      return html`<details class="diff-file" key=${file.name} open=${file.lines.length <= LONG || files.length === 1}>
        <summary><span class="name">${file.name}</span>${file.kind && html`<span class="chip">${file.kind}</span>`}<${Counts} plus=${file.plus} minus=${file.minus} /></summary>
        <div class="scroll" tabindex="0" role="region" aria-label=${`Changes of ${file.name}`}><div class="lines">${shown.map((line) => html`<span class=${`line ${line.kind}`}><i aria-hidden="true">${line.number}</i>${line.text}</span>`)}</div></div>
      </details>`;
    })}
    ${lines > MOST_LINES && html`<p class="small quiet">${amount(lines - MOST_LINES)} more lines are not shown here: <code>${command}</code></p>`}
  </div>`;
}

/** @param {{plus: number, minus: number}} props */
const Counts = ({ plus, minus }) => html`<span class="counts"><span class="plus">+${amount(plus)}</span> <span class="minus">−${amount(minus)}</span></span>`;

/** @param {ChangedFile[]} files @param {"plus" | "minus"} which */
const sum = (files, which) => files.reduce((all, file) => all + file[which], 0);

/** What the heads of a file in a patch say of it. @type {[string, string][]} */
const KINDS = [["new file", "added"], ["deleted file", "deleted"], ["rename to", "renamed"], ["new mode", "mode"], ["Binary files", "binary"], ["GIT binary patch", "binary"]];

/** @param {string} patch @returns {ChangedFile[]} */
function filesOf(patch) {
  /** @type {ChangedFile[]} */
  const files = [];
  let [old, fresh, inHunk] = [0, 0, false];
  for (const text of patch.replace(/\n$/, "").split("\n")) {
    if (text.startsWith("diff --git ")) {
      files.push({ name: text.slice(11).split(" b/").pop() || "", kind: "", lines: [], plus: 0, minus: 0 });
      inHunk = false;
      continue;
    }
    const file = files.at(-1);
    if (!file) continue;
    const place = /^@@ -(\d+)(?:,\d+)? \+(\d+)/.exec(text);
    if (place) {
      [old, fresh, inHunk] = [Number(place[1]), Number(place[2]), true];
      file.lines.push({ number: "", text, kind: "place" });
    } else if (!inHunk) file.kind ||= KINDS.find(([word]) => text.startsWith(word))?.[1] || "";
    else if (text.startsWith("+")) {
      file.plus += 1;
      file.lines.push({ number: String(fresh++), text, kind: "plus" });
    } else if (text.startsWith("-")) {
      file.minus += 1;
      file.lines.push({ number: String(old++), text, kind: "minus" });
    } else {
      const said = text.startsWith("\\"); // that a file has no newline at its end
      file.lines.push({ number: said ? "" : String(fresh++), text: text || " ", kind: "" });
      if (!said) old += 1;
    }
  }
  return files;
}
