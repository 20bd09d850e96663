/**
 * Whatever has no shape is shown by a sign, on every page: control characters, what turns the direction of writing round,
 * and invisible letters. So a text looks like what it is before the user approves it. What is copied or edited is
 * the text itself. Unlike on the command line, marks that scripts and emoji need stay, as long as one stands alone: more
 * of them in a row serve only to hide something.
 */
import { options } from "../vendor/preact.js";

const HIDDEN = String.raw`[\p{Cc}\p{Cf}\p{Default_Ignorable_Code_Point}\u2028\u2029\u2800\u{1d159}]`;
const JOINS = String.raw`[\u061c\u200c-\u200f]`;
const STYLES = String.raw`[\ufe0e\ufe0f]`;
/** Arabic and other signs that are drawn around numbers. */
const DRAWN = String.raw`[\u0600-\u0605\u06dd\u070f\u0890\u0891\u08e2\u{110bd}\u{110cd}]`;
/** Another form of the letter before it. */
const FORMS = String.raw`\p{Ideographic}[\u{e0100}-\u{e01ef}]|[\u1820-\u18aa][\u180b-\u180f]`;
const STAYS = String.raw`[\t\n\r]|${JOINS}|${STYLES}|${DRAWN}|${FORMS}`;
const PILED_UP = `(?<=${JOINS})${JOINS}|(?<=${STYLES})${STYLES}`;
const SHAPELESS = new RegExp(String.raw`${HIDDEN}(?<!${STAYS})|${PILED_UP}|\r(?!\n|$)`, "u");
const ALL = new RegExp(SHAPELESS, "gu");

/** As on the command line. @param {string} char */
function sign(char) {
  const code = /** @type {number} */ (char.codePointAt(0));
  if (code < 0x20) return String.fromCharCode(0x2400 + code);
  return code === 0x7f ? "␡" : `<U+${code.toString(16).toUpperCase().padStart(4, "0")}>`;
}

/** @param {string} text */
export const visible = (text) => (SHAPELESS.test(text) ? text.replace(ALL, sign) : text);

/** @param {any} child @returns {any} */
function shown(child) {
  if (typeof child === "string") return visible(child);
  return Array.isArray(child) && child.some(isText) ? child.map(shown) : child;
}

/** @param {any} child */
const isText = (child) => typeof child === "string" || Array.isArray(child);

/** Every text of every element passes here before it is drawn. */
export function startSigns() {
  const before = options.vnode;
  options.vnode = (/** @type {any} */ node) => {
    if (typeof node.type === "string" && node.props.children !== undefined) node.props.children = shown(node.props.children);
    before?.(node);
  };
}
