/** JSON with every digit: a log holds whole numbers of 64 bits, a number of the browser's only 53 of them. */

const LONG = /\d{16}/;
/** @type {any} */
const Exact = JSON;

/** A whole number that would be rounded is read as a BigInt. @param {string} text @returns {any} */
export const readJson = (text) => (LONG.test(text) ? JSON.parse(text, unrounded) : JSON.parse(text));

/** @param {string} _key @param {any} value @param {any} [context] not in browsers that could not write it either */
const unrounded = (_key, value, context) => (typeof value === "number" && context ? wholeNumber(value, context.source) : value);

/** @param {number} value @param {string} source what it was read from */
export const wholeNumber = (value, source) =>
  Number.isInteger(value) && !Number.isSafeInteger(value) && /^-?\d+$/.test(source) && Exact.rawJSON ? BigInt(source) : value;

/** @param {unknown} value @param {number} [indent] @returns {string} */
export const writeJson = (value, indent) =>
  JSON.stringify(value, (_key, one) => (typeof one === "bigint" ? Exact.rawJSON(String(one)) : one), indent) ?? "";
