/** What is wanted now and then, behind one button. It closes with Esc, with a press elsewhere, and when something was chosen. */
import { html, useLayoutEffect, useRef, useState } from "../vendor/preact.js";

/** @param {{name: string, children?: any}} props */
export function Menu({ name, children }) {
  const [open, setOpen] = useState(false);
  const box = useRef(/** @type {HTMLDivElement | null} */ (null));
  const button = useRef(/** @type {HTMLButtonElement | null} */ (null));
  useLayoutEffect(() => {
    if (!open) return;
    const elsewhere = (/** @type {Event} */ event) => !box.current?.contains(/** @type {Node} */ (event.target)) && setOpen(false);
    addEventListener("pointerdown", elsewhere);
    return () => removeEventListener("pointerdown", elsewhere);
  }, [open]);
  const press = (/** @type {KeyboardEvent} */ event) => {
    if (event.key !== "Escape" || !open) return;
    event.stopPropagation();
    setOpen(false);
    button.current?.focus();
  };
  // What was chosen goes: the focus is on what stays before anything is done, so that a dialog gives it back to that.
  const choosing = () => button.current?.focus();
  return html`<div class="menu" ref=${box} onKeyDown=${press}>
    <button class="button" ref=${button} aria-expanded=${open ? "true" : "false"} onClick=${() => setOpen(!open)}>${name} ▾</button>
    ${open && html`<div class="menu-list" onClickCapture=${choosing} onClick=${() => setOpen(false)}>${children}</div>`}
  </div>`;
}
