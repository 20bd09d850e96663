/**
 * Code in a few colours: comments, strings, numbers, keywords and keys. A reader's help, not a parser.
 *
 * Every line is matched once from left to right, without going back, so the cost grows with the text and no faster. Long
 * texts and long lines stay in one colour.
 */
import { html } from "../vendor/preact.js";
import { paintLine } from "./yaml.js";

const MAX_CHARS = 60_000;
const MAX_LINE = 600;

const COMMON = "break case catch class const continue default do else enum export extends false finally for function if import in interface let match new null package private protected public return static struct super switch this throw true try type typeof use var void while";
/** Words of each family of languages, and how its comments start. @type {Record<string, {comment: string, words: string}>} */
const FAMILIES = {
  python: { comment: "#", words: "and as assert async await break class continue def del elif else except False finally for from global if import in is lambda match None nonlocal not or pass raise return self True try while with yield" },
  shell: { comment: "#", words: "case cd do done echo elif else esac exit export fi for function if in local return set then while" },
  sql: { comment: "--", words: "and as by case create delete desc distinct drop else end from group having in index insert into is join left limit not null on or order primary select set table then union update values when where SELECT FROM WHERE AND OR INSERT INTO VALUES UPDATE SET DELETE CREATE TABLE JOIN LEFT ON GROUP BY ORDER LIMIT AS NOT NULL" },
  toml: { comment: "#", words: "true false" },
  json: { comment: "\u0000", words: "true false null" },
  curly: { comment: "//", words: `${COMMON} async await fn func go impl mut nil of pub trait undefined yield from int string bool` },
};
/** @type {Record<string, string>} */
const LANGUAGES = {
  py: "python", python: "python", python3: "python", pyi: "python", sh: "shell", bash: "shell", shell: "shell", console: "shell", zsh: "shell",
  json: "json", jsonl: "json", toml: "toml", ini: "toml", cfg: "toml", sql: "sql", yaml: "yaml", yml: "yaml", diff: "diff", patch: "diff",
  js: "curly", mjs: "curly", javascript: "curly", jsx: "curly", ts: "curly", tsx: "curly", typescript: "curly", c: "curly", h: "curly", cpp: "curly", cc: "curly", cs: "curly", java: "curly", kt: "curly", go: "curly", rs: "curly", rust: "curly", swift: "curly", php: "curly", css: "curly",
};
/** @type {Map<string, {pattern: RegExp, words: Set<string>}>} */
const rules = new Map();

/** @param {string} family */
function ruleOf(family) {
  const known = rules.get(family);
  if (known) return known;
  const { comment, words } = FAMILIES[family];
  const pattern = new RegExp(`(${comment}.*)|("(?:[^"\\\\]|\\\\.)*"?|'(?:[^'\\\\]|\\\\.)*'?|\`[^\`]*\`?)|(\\b\\d[\\w.]*)|([A-Za-z_]\\w*)`, "g");
  const made = { pattern, words: new Set(words.split(" ")) };
  rules.set(family, made);
  return made;
}

/** The language of a file by its name; empty if it is not known. @param {string} path */
export function languageOf(path) {
  const ending = /\.([A-Za-z0-9]+)$/.exec(path)?.[1]?.toLowerCase() || "";
  return LANGUAGES[ending] ? ending : "";
}

/** Code as nodes of the page. @param {string} code @param {string} language */
export function paint(code, language) {
  const family = LANGUAGES[language.toLowerCase()];
  if (!family || code.length > MAX_CHARS) return code;
  return code.split("\n").flatMap((line, i) => [i ? "\n" : "", line.length > MAX_LINE ? line : family === "yaml" ? paintLine(line, []) : family === "diff" ? changed(line) : painted(line, family)]);
}

/** @param {string} line */
function changed(line) {
  const kind = line.startsWith("+") ? "plus" : line.startsWith("-") ? "minus" : line.startsWith("@@") ? "comment" : "";
  return kind ? html`<span class=${kind}>${line}</span>` : line;
}

/** @param {string} line @param {string} family */
function painted(line, family) {
  const { pattern, words } = ruleOf(family);
  const found = [];
  let reached = 0;
  for (const match of line.matchAll(pattern)) {
    const [text, comment, string, number, word] = match;
    const isKey = string && (family === "json" || family === "toml") && /^\s*:/.test(line.slice(match.index + text.length, match.index + text.length + 8));
    const kind = comment ? "comment" : isKey ? "key" : string ? "string" : number ? "number" : words.has(word) ? "word" : "";
    if (!kind) continue;
    found.push(line.slice(reached, match.index), html`<span class=${kind}>${text}</span>`);
    reached = match.index + text.length;
  }
  found.push(line.slice(reached));
  return found;
}
