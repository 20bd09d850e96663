/** Tabs: those that are places in the address are links; those inside a panel are the real thing. A phone shows three and a list. */
import { html } from "../vendor/preact.js";
import { go } from "../shell/route.js";
import { usePhone } from "../shell/width.js";

const ON_PHONE = 3;

/** @template T @param {T[]} tabs @returns {[T[], T[]]} */
function divided(tabs, /** @type {boolean} */ phone) {
  return phone && tabs.length > ON_PHONE + 1 ? [tabs.slice(0, ON_PHONE), tabs.slice(ON_PHONE)] : [tabs, []];
}

/** The tabs that a phone has no room for. @param {{id?: string, label: string, tabs: {id: string, name: string}[], chosen: string, onChoose: (id: string) => void}} props */
function More({ id, label, tabs, chosen, onChoose }) {
  const here = tabs.some((tab) => tab.id === chosen);
  return html`<select id=${here ? id : undefined} class=${here ? "chosen" : ""} aria-label=${`${label}: more`} value=${here ? chosen : ""} onChange=${(/** @type {any} */ event) => event.target.value && onChoose(event.target.value)}>
    <option value="">More</option>${tabs.map((tab) => html`<option key=${tab.id} value=${tab.id}>${tab.name}</option>`)}</select>`;
}

/** @param {{label: string, tabs: {id: string, name: string, href: string}[], chosen: string}} props */
export function LinkTabs({ label, tabs, chosen }) {
  const [shown, rest] = divided(tabs, usePhone());
  return html`<nav class="tabs" aria-label=${label}>
    ${shown.map((tab) => html`<a key=${tab.id} href=${tab.href} aria-current=${tab.id === chosen ? "page" : undefined}>${tab.name}</a>`)}
    ${rest.length > 0 && html`<${More} label=${label} tabs=${rest} chosen=${chosen} onChoose=${(/** @type {string} */ id) => go(rest.find((tab) => tab.id === id)?.href || "")} />`}
  </nav>`;
}

/** @param {{label: string, tabs: {id: string, name: string}[], chosen: string, onChoose: (id: string) => void, controls: string}} props */
export function PanelTabs({ label, tabs, chosen, onChoose, controls }) {
  const [shown, rest] = divided(tabs, usePhone());
  const move = (/** @type {KeyboardEvent} */ event) => {
    const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (!step) return;
    event.preventDefault();
    const at = shown.findIndex((tab) => tab.id === chosen);
    const next = shown[(at + step + shown.length) % shown.length];
    onChoose(next.id);
    document.getElementById(`${controls}-${next.id}`)?.focus();
  };
  const reached = shown.some((tab) => tab.id === chosen) ? chosen : shown[0]?.id;
  return html`<div class="tabs"><div class="tabs" role="tablist" aria-label=${label} onKeyDown=${move}>
    ${shown.map((tab) => html`<button key=${tab.id} id=${`${controls}-${tab.id}`} role="tab" type="button" aria-controls=${controls}
      aria-selected=${tab.id === chosen ? "true" : "false"} tabindex=${tab.id === reached ? 0 : -1} onClick=${() => onChoose(tab.id)}>${tab.name}</button>`)}
  </div>${rest.length > 0 && html`<${More} id=${`${controls}-${chosen}`} label=${label} tabs=${rest} chosen=${chosen} onChoose=${onChoose} />`}</div>`;
}
