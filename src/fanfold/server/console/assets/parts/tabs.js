/** Tabs: those that are places in the address are links; those inside a panel are the real thing. What does not fit is in a list. */
import { html, useLayoutEffect, useRef, useState } from "../vendor/preact.js";
import { go } from "../shell/route.js";

const LETTER = 7.2;
const AROUND = 25;
const MORE = 92;

/**
 * The tabs that fit into the width of their bar, and the others. The width of a tab is estimated from its name, so that nothing moves
 * after it is drawn. @template {{name: string}} T @param {T[]} tabs @returns {[any, T[], T[]]}
 */
function useFitting(tabs) {
  const bar = useRef(/** @type {HTMLElement | null} */ (null));
  const [room, setRoom] = useState(Infinity);
  useLayoutEffect(() => {
    const element = bar.current;
    if (!element) return;
    const measure = () => setRoom(element.clientWidth);
    const watch = new ResizeObserver(measure);
    measure();
    watch.observe(element);
    return () => watch.disconnect();
  }, []);
  const widths = tabs.map((tab) => tab.name.length * LETTER + AROUND);
  const upTo = (/** @type {number} */ count) => widths.slice(0, count).reduce((sum, width) => sum + width, 0);
  let count = tabs.length;
  if (upTo(count) > room) do count -= 1; while (count > 1 && upTo(count) + MORE > room);
  return [bar, tabs.slice(0, count), tabs.slice(count)];
}

/** The tabs that do not fit. @param {{id?: string, label: string, tabs: {id: string, name: string}[], chosen: string, onChoose: (id: string) => void}} props */
function More({ id, label, tabs, chosen, onChoose }) {
  const here = tabs.some((tab) => tab.id === chosen);
  return html`<select id=${here ? id : undefined} class=${here ? "chosen" : ""} aria-label=${`${label}: more`} value=${here ? chosen : ""} onChange=${(/** @type {any} */ event) => event.target.value && onChoose(event.target.value)}>
    <option value="">More</option>${tabs.map((tab) => html`<option key=${tab.id} value=${tab.id}>${tab.name}</option>`)}</select>`;
}

/** @param {{label: string, tabs: {id: string, name: string, href: string}[], chosen: string}} props */
export function LinkTabs({ label, tabs, chosen }) {
  const [bar, shown, rest] = useFitting(tabs);
  return html`<nav class="tabs" ref=${bar} aria-label=${label}>
    ${shown.map((tab) => html`<a key=${tab.id} href=${tab.href} aria-current=${tab.id === chosen ? "page" : undefined}>${tab.name}</a>`)}
    ${rest.length > 0 && html`<${More} label=${label} tabs=${rest} chosen=${chosen} onChoose=${(/** @type {string} */ id) => go(rest.find((tab) => tab.id === id)?.href || "")} />`}
  </nav>`;
}

/** @param {{label: string, tabs: {id: string, name: string}[], chosen: string, onChoose: (id: string) => void, controls: string}} props */
export function PanelTabs({ label, tabs, chosen, onChoose, controls }) {
  const [bar, shown, rest] = useFitting(tabs);
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
  return html`<div class="tabs" ref=${bar}><div class="tabs" role="tablist" aria-label=${label} onKeyDown=${move}>
    ${shown.map((tab) => html`<button key=${tab.id} id=${`${controls}-${tab.id}`} role="tab" type="button" aria-controls=${controls}
      aria-selected=${tab.id === chosen ? "true" : "false"} tabindex=${tab.id === reached ? 0 : -1} onClick=${() => onChoose(tab.id)}>${tab.name}</button>`)}
  </div>${rest.length > 0 && html`<${More} id=${`${controls}-${chosen}`} label=${label} tabs=${rest} chosen=${chosen} onChoose=${onChoose} />`}</div>`;
}
