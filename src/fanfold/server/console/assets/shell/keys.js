/** Keys: one table that pages add to while they are shown; the help is made from it. */
import { useEffect } from "../vendor/preact.js";

/** @typedef {{key: string, what: string, act: () => void}} Key */
/** @type {Set<Key[]>} */
const tables = new Set();

/** Keys of a page, for as long as it is shown. @param {Key[]} keys @param {unknown[]} on */
export function useKeys(keys, on) {
  useEffect(() => {
    tables.add(keys);
    return () => tables.delete(keys);
  }, on);
}

/** All keys that work now. @returns {Key[]} */
export const knownKeys = () => [...tables].flat();

export function startKeys() {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const target = /** @type {HTMLElement} */ (event.target);
    const typing = target.matches?.("input:not([type=checkbox]):not([type=range]), textarea, select, [contenteditable]");
    if (document.querySelector("dialog[open]")) return; // it closes itself
    if (typing) return event.key === "Escape" ? target.blur() : undefined;
    const found = knownKeys().reverse().find((one) => one.key === event.key);
    if (!found) return;
    event.preventDefault();
    found.act();
  });
}
