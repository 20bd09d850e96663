/** Keys: one table that pages add to while they are shown; the help is made from it. */
import { useLayoutEffect, useRef } from "../vendor/preact.js";

/** @typedef {{key: string, what: string, act: () => void}} Key */
/** @type {Set<{current: Key[]}>} */
const tables = new Set();

/**
 * Keys of a page, for as long as it is shown. They are those of its last drawing from the moment
 * that drawing can be seen: an effect would come a frame later, and a key pressed between lost.
 * @param {Key[]} keys
 */
export function useKeys(keys) {
  const table = useRef(keys);
  table.current = keys;
  useLayoutEffect(() => {
    tables.add(table);
    return () => tables.delete(table);
  }, []);
}

/** All keys that work now. @returns {Key[]} */
export const knownKeys = () => [...tables].flatMap((table) => table.current);

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
