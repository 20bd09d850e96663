/** Tabs: those that are places in the address are links; those inside a panel are the real thing. */
import { html, useEffect, useRef } from "../vendor/preact.js";

/** On a narrow page tabs scroll: the chosen one is in sight. @param {string} chosen */
function useInSight(chosen) {
  const bar = useRef(/** @type {any} */ (null));
  useEffect(() => {
    const tab = bar.current?.querySelector("[aria-current=page], [aria-selected=true]");
    if (tab) bar.current.scrollLeft = tab.offsetLeft - bar.current.offsetLeft - 40;
  }, [chosen]);
  return bar;
}

/** @param {{label: string, tabs: {id: string, name: string, href: string, count?: number}[], chosen: string}} props */
export function LinkTabs({ label, tabs, chosen }) {
  const bar = useInSight(chosen);
  return html`<nav class="tabs" ref=${bar} aria-label=${label}>
    ${tabs.map((tab) => html`<a key=${tab.id} href=${tab.href} aria-current=${tab.id === chosen ? "page" : undefined}>
      ${tab.name}${tab.count !== undefined && html`<span class="count">${tab.count}</span>`}
    </a>`)}
  </nav>`;
}

/** @param {{label: string, tabs: {id: string, name: string}[], chosen: string, onChoose: (id: string) => void, controls: string}} props */
export function PanelTabs({ label, tabs, chosen, onChoose, controls }) {
  const bar = useInSight(chosen);
  const move = (/** @type {KeyboardEvent} */ event) => {
    const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (!step) return;
    event.preventDefault();
    const at = tabs.findIndex((tab) => tab.id === chosen);
    const next = tabs[(at + step + tabs.length) % tabs.length];
    onChoose(next.id);
    document.getElementById(`${controls}-${next.id}`)?.focus();
  };
  return html`<div class="tabs" ref=${bar} role="tablist" aria-label=${label} onKeyDown=${move}>
    ${tabs.map((tab) => html`<button key=${tab.id} id=${`${controls}-${tab.id}`} role="tab" type="button" aria-controls=${controls}
      aria-selected=${tab.id === chosen ? "true" : "false"} tabindex=${tab.id === chosen ? 0 : -1} onClick=${() => onChoose(tab.id)}>${tab.name}</button>`)}
  </div>`;
}
