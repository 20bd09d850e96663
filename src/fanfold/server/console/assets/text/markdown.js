/**
 * Markdown that a model wrote, as nodes of the page: never as markup.
 *
 * Nothing is loaded from anywhere (a picture is shown as its words), a link opens only when the user presses it and
 * only to http or https, and HTML is text like any other.
 *
 * The cost grows linearly with the text: texts that are too long, too deep or without any
 * line break are shown as they are, and always to their end.
 */
import { html } from "../vendor/preact.js";
import { Code } from "../parts/code.js";

const MAX_CHARS = 200_000;
const MAX_DEPTH = 12;
const MAX_PARAGRAPH = 10_000;

/** Whether marks are looked for in it. @param {string} text */
export const isFormatted = (text) => text.length <= MAX_CHARS;

/** @param {{text: string}} props */
export function Markdown({ text }) {
  if (!isFormatted(text)) return html`<pre class="block" tabindex="0">${text}</pre>`;
  return html`<div class="prose">${blocks(text.split(/\r?\n/), 0)}</div>`;
}

/** Where the first line that is like that stands. @param {string[]} lines @param {number} from @param {(line: string) => boolean} test */
function where(lines, from, test) {
  let i = from;
  while (i < lines.length && !test(lines[i])) i += 1;
  return i;
}

/** @param {string[]} lines @param {number} depth @returns {any[]} */
function blocks(lines, depth) {
  if (depth > MAX_DEPTH) return [html`<p>${lines.join("\n")}</p>`];
  const found = [];
  let i = 0;
  while (i < lines.length) {
    const line = lines[i];
    let match;
    if (!line.trim()) {
      i += 1;
    } else if ((match = /^\s{0,3}(`{3,}|~{3,})\s*([\w+-]*)/.exec(line))) {
      const fence = match[1];
      const stop = where(lines, i + 1, (one) => one.trim().startsWith(fence));
      found.push(html`<${Code} text=${lines.slice(i + 1, stop).join("\n")} language=${match[2]} />`);
      i = stop + 1;
    } else if ((match = /^\s{0,3}(#{1,6})\s+(.*)$/.exec(line))) {
      const words = inline(withoutEnd(match[2], "#"));
      found.push(match[1].length < 3 ? html`<h2>${words}</h2>` : html`<h3>${words}</h3>`);
      i += 1;
    } else if (/^\s{0,3}([-*_])\s*(\1\s*){2,}$/.test(line)) {
      found.push(html`<hr />`);
      i += 1;
    } else if (/^\s{0,3}>/.test(line)) {
      const stop = where(lines, i, (one) => !/^\s{0,3}>/.test(one));
      found.push(html`<blockquote>${blocks(lines.slice(i, stop).map((one) => one.replace(/^\s{0,3}> ?/, "")), depth + 1)}</blockquote>`);
      i = stop;
    } else if (isItem(line)) {
      const stop = endOfList(lines, i);
      found.push(list(lines.slice(i, stop), depth));
      i = stop;
    } else if (line.includes("|") && /^\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?$/.test((lines[i + 1] || "").trim())) {
      const stop = where(lines, i + 2, (one) => !one.includes("|"));
      found.push(table(lines.slice(i, stop)));
      i = stop;
    } else {
      let stop = i + 1;
      while (stop < lines.length && lines[stop].trim() && !startsBlock(lines[stop])) stop += 1;
      found.push(html`<p>${inline(lines.slice(i, stop).join("\n"))}</p>`);
      i = stop;
    }
  }
  return found;
}

/** @param {string} line */
const isItem = (line) => /^\s*([-*+]|\d{1,9}[.)])\s+/.test(line);
/** @param {string} line */
const startsBlock = (line) => isItem(line) || /^\s{0,3}(#{1,6}\s|>|`{3,}|~{3,})/.test(line);

/** @param {string[]} lines @param {number} from */
function endOfList(lines, from) {
  let i = from + 1;
  while (i < lines.length) {
    if (!lines[i].trim()) {
      if (!isItem(lines[i + 1] || "") && !/^\s{2,}\S/.test(lines[i + 1] || "")) break;
    } else if (!isItem(lines[i]) && !/^\s{2,}/.test(lines[i])) break;
    i += 1;
  }
  return i;
}

/** @param {string} text @param {string} char */
function withoutEnd(text, char) {
  let end = text.length;
  while (text[end - 1] === char) end -= 1;
  return text.slice(0, end);
}

/** @param {string[]} lines @param {number} depth */
function list(lines, depth) {
  const outermost = indentOf(lines[0]);
  /** @type {string[][]} */
  const items = [];
  for (const line of lines) {
    if (isItem(line) && indentOf(line) <= outermost) items.push([line.replace(/^\s*([-*+]|\d{1,9}[.)])\s+/, "")]);
    else items[items.length - 1]?.push(line);
  }
  const made = items.map((item) => {
    const inner = item.slice(1);
    const least = inner.filter((one) => one.trim()).reduce((most, one) => Math.min(most, indentOf(one)), 99);
    const below = inner.map((one) => one.slice(Math.min(least, indentOf(one))));
    return html`<li>${inline(item[0])}${below.some((one) => one.trim()) ? blocks(below, depth + 1) : null}</li>`;
  });
  return /^\s*\d/.test(lines[0]) ? html`<ol>${made}</ol>` : html`<ul>${made}</ul>`;
}

/** @param {string} line */
const indentOf = (line) => line.length - line.trimStart().length;

/** @param {string[]} lines */
function table(lines) {
  /** @param {string} line */
  const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => inline(cell.trim()));
  return html`<div class="table-box" tabindex="0" role="group" aria-label="Table, scrolls sideways"><table>
    <thead><tr>${cells(lines[0]).map((cell) => html`<th>${cell}</th>`)}</tr></thead>
    <tbody>${lines.slice(2).map((line) => html`<tr>${cells(line).map((cell) => html`<td>${cell}</td>`)}</tr>`)}</tbody>
  </table></div>`;
}

/** Markdown in one line, without its marks: for lists and banners. @param {string | null | undefined} text */
export const plain = (text) =>
  (text || "")
    .slice(0, 2000)
    .replace(/```[\w+-]*(?=\s|$)|`+/g, "")
    .replace(/!?\[([^\]]*)\]\([^)\s]*\)/g, "$1")
    .replace(/(\*\*|__)(?=\S)([^*_]+?)\1/g, "$2")
    .replace(/(^|[\s(])([*_])(?=\S)([^*_\n]+?)\2/g, "$1$3")
    .replace(/^\s{0,3}(#{1,6}|>|[-*+])\s+/gm, "")
    .replace(/\s+/g, " ");

const INLINE = /(`+)([\s\S]+?)\1|!\[([^\]]*)\]\([^)\s]*\)|\[([^\]]+)\]\((\S+?)\)|(\*\*|__)(?=\S)([\s\S]+?\S?)\6|(\*|_)(?=\S)([^*_]+?)\8/;

/** @param {string} text @param {number} [depth] @returns {any[]} */
function inline(text, depth = 0) {
  const found = [];
  let rest = text;
  while (rest) {
    const match = depth < 6 && rest.length <= MAX_PARAGRAPH ? INLINE.exec(rest) : null;
    if (!match) {
      found.push(rest);
      break;
    }
    if (match.index) found.push(rest.slice(0, match.index));
    const [whole, ticks, code, picture, words, href, strong, bold, , soft] = match;
    if (ticks) found.push(html`<code>${code.trim()}</code>`);
    else if (picture !== undefined) found.push(`[picture: ${picture}]`);
    else if (words !== undefined) found.push(link(words, href, depth));
    else if (strong) found.push(html`<strong>${inline(bold, depth + 1)}</strong>`);
    else found.push(html`<em>${inline(soft, depth + 1)}</em>`);
    rest = rest.slice(match.index + whole.length);
  }
  return found;
}

/** @param {string} words @param {string} href @param {number} depth */
function link(words, href, depth) {
  if (!/^https?:\/\//i.test(href)) return html`${inline(words, depth + 1)} (${href})`;
  return html`<a href=${href} target="_blank" rel="noopener noreferrer nofollow" title=${href}>${inline(words, depth + 1)}</a>`;
}
