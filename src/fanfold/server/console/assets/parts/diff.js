/** A diff, file by file, unified or side by side, in the usual colours and with signs that need no colour. */
import { html, useState } from "../vendor/preact.js";
import { amount, counted } from "../text/format.js";
import { Copy } from "./code.js";

const KEY = "fanfold-diff";

const MOST_LINES = 5000;
/** A file with more lines is closed until the user opens it. */
const LONG = 400;

/**
 * @typedef {{number: string, text: string, kind: string}} Line
 * @typedef {{name: string, kind: string, lines: Line[], plus: number, minus: number}} ChangedFile
 */

/** `command` shows all of it where a page does not. @param {{patch: string, command: string}} props */
export function Diff({ patch, command }) {
  const files = filesOf(patch);
  const lines = files.reduce((sum, file) => sum + file.lines.length, 0);
  const [pairs, setPairs] = useState(stored);
  const choose = (/** @type {boolean} */ next) => {
    setPairs(next);
    try {
      localStorage.setItem(KEY, next ? "pairs" : "unified");
    } catch {
      // Without storage the choice lasts as long as this page.
    }
  };
  let room = MOST_LINES;
  return html`<div class="diff">
    <div class="diff-head small quiet"><span>${counted(files.length, "file")} <${Counts} plus=${sum(files, "plus")} minus=${sum(files, "minus")} /></span>
      <span class="choice" role="group" aria-label="How the diff is shown">${[[false, "Unified"], [true, "Side by side"]].map(([which, name]) => html`<button type="button" key=${name} class="button plain small" aria-pressed=${pairs === which ? "true" : "false"} onClick=${() => choose(Boolean(which))}>${name}</button>`)}<${Copy} text=${patch} label="Copy the patch" /></span></div>
    ${files.map((file) => {
      const shown = file.lines.slice(0, Math.max(0, room));
      room -= shown.length;
      return html`<details class="diff-file" key=${file.name} open=${file.lines.length <= LONG || files.length === 1}>
        <summary><span class="name">${file.name}</span>${file.kind && html`<span class="chip">${file.kind}</span>`}<${Counts} plus=${file.plus} minus=${file.minus} /></summary>
        <div class="scroll" tabindex="0" role="region" aria-label=${`Changes of ${file.name}`}>${pairs ? html`<${Pairs} lines=${shown} />` : html`<div class="lines">${shown.map((line) => html`<${One} line=${line} />`)}</div>`}</div>
      </details>`;
    })}
    ${lines > MOST_LINES && html`<p class="small quiet">${amount(lines - MOST_LINES)} more lines are not shown here: <code>${command}</code></p>`}
  </div>`;
}

/** @param {{line: Line | null}} props */
const One = ({ line }) => html`<span class=${`line ${line ? line.kind : "none"}`}><i aria-hidden="true">${line?.number}</i>${line?.text}</span>`;

/** Removed lines on the left, those that replace them on the right. @param {{lines: Line[]}} props */
function Pairs({ lines }) {
  /** @type {[Line | null, Line | null][]} */
  const rows = [];
  let at = 0; // the first row of a change that has no line on the right yet
  for (const line of lines) {
    if (line.kind === "minus") rows.push([line, null]);
    else if (line.kind === "plus") {
      while (at < rows.length && rows[at][1]) at += 1;
      if (at < rows.length) rows[at][1] = line;
      else rows.push([null, line]);
      continue;
    } else rows.push([line, line]);
    if (line.kind !== "minus") at = rows.length;
  }
  return html`<div class="pairs-of-lines">${rows.map(([left, right]) => left && left === right && left.kind === "place" ? html`<div class="row-of-both"><${One} line=${left} /></div>` : html`<${One} line=${left} /><${One} line=${right} />`)}</div>`;
}

/** Whether the diffs of this browser are side by side. */
function stored() {
  try {
    return localStorage.getItem(KEY) === "pairs";
  } catch {
    return false;
  }
}

/** @param {{plus: number, minus: number}} props */
const Counts = ({ plus, minus }) => html`<span class="counts"><span class="plus">+${amount(plus)}</span> <span class="minus">−${amount(minus)}</span></span>`;

/** @param {ChangedFile[]} files @param {"plus" | "minus"} which */
const sum = (files, which) => files.reduce((all, file) => all + file[which], 0);

/** What the header lines of a file in a patch mean. @type {[string, string][]} */
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
      const marker = text.startsWith("\\"); // that a file has no newline at its end
      file.lines.push({ number: marker ? "" : String(fresh++), text: text || " ", kind: "" });
      if (!marker) old += 1;
    }
  }
  return files;
}
