/**
 * Whatever has no shape is shown by a sign, on every page: control characters, what turns the direction of writing round,
 * and letters that nobody sees. So a text looks like what it is before somebody agrees to it. What is copied or edited is
 * the text itself. Joiners and marks that scripts and emoji need stay.
 */
import { options } from "../vendor/preact.js";

const SHAPELESS =
  /[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}]|\r(?!\n|$)/u;
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
