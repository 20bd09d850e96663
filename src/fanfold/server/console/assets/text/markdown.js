/**
 * Markdown that a model wrote, as nodes of the page: never as markup.
 *
 * Nothing is loaded from anywhere (a picture is shown as its words), a link leads out only when somebody presses it and
 * only to http or https, and HTML is text like any other.
 */
import { html } from "../vendor/preact.js";

const MAX_CHARS = 200_000;

/** @param {{text: string}} props */
export function Markdown({ text }) {
  return html`<div class="prose">${blocks(text.slice(0, MAX_CHARS).split(/\r?\n/))}</div>`;
}

/** @param {string[]} lines @returns {any[]} */
function blocks(lines) {
  const found = [];
  let i = 0;
  while (i < lines.length) {
    const line = lines[i];
    let match;
    if (!line.trim()) {
      i += 1;
    } else if ((match = /^\s{0,3}(`{3,}|~{3,})/.exec(line))) {
      const fence = match[1];
      const end = lines.findIndex((one, at) => at > i && one.trim().startsWith(fence));
      const stop = end < 0 ? lines.length : end;
      found.push(html`<pre class="block">${lines.slice(i + 1, stop).join("\n")}</pre>`);
      i = stop + 1;
    } else if ((match = /^\s{0,3}(#{1,6})\s+(.*?)#*$/.exec(line))) {
      const size = match[1].length;
      found.push(size < 3 ? html`<h2>${inline(match[2])}</h2>` : html`<h3>${inline(match[2])}</h3>`);
      i += 1;
    } else if (/^\s{0,3}([-*_])\s*(\1\s*){2,}$/.test(line)) {
      found.push(html`<hr />`);
      i += 1;
    } else if (/^\s{0,3}>/.test(line)) {
      const end = lines.findIndex((one, at) => at >= i && !/^\s{0,3}>/.test(one));
      const stop = end < 0 ? lines.length : end;
      found.push(html`<blockquote>${blocks(lines.slice(i, stop).map((one) => one.replace(/^\s{0,3}> ?/, "")))}</blockquote>`);
      i = stop;
    } else if (isItem(line)) {
      const stop = endOfList(lines, i);
      found.push(list(lines.slice(i, stop)));
      i = stop;
    } else if (line.includes("|") && /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/.test(lines[i + 1] || "")) {
      const end = lines.findIndex((one, at) => at > i + 1 && !one.includes("|"));
      const stop = end < 0 ? lines.length : end;
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

/** @param {string[]} lines */
function list(lines) {
  const depth = indentOf(lines[0]);
  /** @type {string[][]} */
  const items = [];
  for (const line of lines) {
    if (isItem(line) && indentOf(line) <= depth) items.push([line.replace(/^\s*([-*+]|\d{1,9}[.)])\s+/, "")]);
    else items[items.length - 1]?.push(line);
  }
  const made = items.map((item) => {
    const inner = item.slice(1);
    const least = Math.min(...inner.filter((one) => one.trim()).map(indentOf), 99);
    const below = inner.map((one) => one.slice(Math.min(least, indentOf(one))));
    return html`<li>${inline(item[0])}${below.some((one) => one.trim()) ? blocks(below) : null}</li>`;
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
    .replace(/```[^\n]*|`+/g, "")
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
    const match = depth < 6 ? INLINE.exec(rest) : null;
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
