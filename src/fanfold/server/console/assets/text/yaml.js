/** The text of a recipe in a few colours: keys, comments, holes of templates. A reader's help, not a parser. */
import { html } from "../vendor/preact.js";

/**
 * One line as pieces, with the columns that a diagnostic speaks of marked.
 * @param {string} line @param {{from: number, to: number, tone: string}[]} marks
 */
export function paintLine(line, marks) {
  /** @type {[number, number, string][]} */
  const pieces = [];
  const comment = /^\s*#.*|\s#.*$/.exec(line);
  const key = /^(\s*(?:- )*)([\w.-]+|"[^"]*")(?=:(\s|$))/.exec(line);
  if (key) pieces.push([key[1].length, key[0].length, "key"]);
  for (const hole of line.matchAll(/\{\{.*?\}\}/g)) pieces.push([hole.index, hole.index + hole[0].length, "hole"]);
  if (comment) pieces.push([comment.index, line.length, "comment"]);
  const edges = new Set([0, line.length]);
  for (const [from, to] of pieces) edges.add(from).add(to);
  for (const mark of marks) edges.add(Math.min(mark.from, line.length)).add(Math.min(mark.to, line.length));
  const cuts = [...edges].sort((a, b) => a - b);
  return cuts.slice(0, -1).map((from, i) => {
    const to = cuts[i + 1];
    const colour = pieces.filter((piece) => piece[0] <= from && to <= piece[1]).map((piece) => piece[2]);
    const marked = marks.filter((mark) => mark.from <= from && to <= mark.to).map((mark) => mark.tone);
    const names = [...colour, ...marked].join(" ");
    return names ? html`<span class=${names}>${line.slice(from, to)}</span>` : line.slice(from, to);
  });
}
