/** Dialogs: the browser's own, so that focus, Esc and readers of screens work as everywhere. */
import { html, useLayoutEffect, useRef } from "../vendor/preact.js";

/** @param {{title: string, onClose: () => void, foot?: any, children?: any}} props */
export function Dialog({ title, onClose, foot, children }) {
  const box = useRef(/** @type {HTMLDialogElement | null} */ (null));
  const pressed = useRef(false);
  // Open from the moment it can be seen: a key that comes in between would be taken for one of the page.
  useLayoutEffect(() => {
    const before = document.activeElement;
    const dialog = box.current;
    dialog?.showModal();
    return () => {
      const now = document.activeElement;
      // Back to where it was, unless it was moved already: a page is notified late that a dialog was closed.
      if (before instanceof HTMLElement && (!now || now === document.body || dialog?.contains(now))) before.focus();
    };
  }, []);
  const outside = (/** @type {Event} */ event) => event.target === box.current;
  return html`<dialog ref=${box} aria-labelledby="dialog-title" onClose=${onClose} onPointerDown=${(/** @type {Event} */ event) => (pressed.current = outside(event))} onClick=${(/** @type {Event} */ event) => pressed.current && outside(event) && onClose()}>
    <div class="dialog-head">
      <h2 id="dialog-title">${title}</h2>
      <button class="button plain small" onClick=${onClose} aria-label="Close" title="Close (Esc)">✕</button>
    </div>
    <div class="dialog-body">${children}</div>
    ${foot && html`<div class="dialog-foot">${foot}</div>`}
  </dialog>`;
}

/** Something that cannot be taken back is asked about first. @param {{title: string, text: any, verb: string, onYes: () => void, onClose: () => void}} props */
export function Confirm({ title, text, verb, onYes, onClose }) {
  return html`<${Dialog} title=${title} onClose=${onClose} foot=${html`
      <button class="button" onClick=${onClose}>Not now</button>
      <button class="button danger primary" onClick=${() => { onClose(); onYes(); }}>${verb}</button>`}>
    <p>${text}</p>
  </${Dialog}>`;
}
