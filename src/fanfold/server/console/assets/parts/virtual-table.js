/** A table of any length of which only the rows in sight exist. Rows are 40 pixels high. */
import { html, useEffect, useLayoutEffect, useRef, useState } from "../vendor/preact.js";

export const ROW = 40;
const SPARE = 12;

/**
 * @param {{
 *   label: string, columns: {name: string, kind?: string, number?: boolean, narrow?: boolean, medium?: boolean, head?: any}[], rows: any[], keyOf: (row: any) => string,
 *   render: (row: any) => any[], chosen?: string | null, total?: number, onEnd?: () => void, rowProps?: (row: any) => any,
 * }} props
 */
export function VirtualTable({ label, columns, rows, keyOf, render, chosen, total, onEnd, rowProps }) {
  const box = useRef(/** @type {HTMLDivElement | null} */ (null));
  const [sight, setSight] = useState({ from: 0, to: 60 });
  const look = () => {
    const element = box.current;
    if (!element) return;
    // On a phone the table does not scroll by itself: then the window decides what is in sight.
    const own = element.scrollHeight > element.clientHeight + 4;
    const top = own ? element.scrollTop : Math.max(0, -element.getBoundingClientRect().top);
    const height = own ? element.clientHeight : innerHeight;
    const from = Math.max(0, Math.floor(top / ROW) - SPARE);
    const to = Math.ceil((top + height) / ROW) + SPARE;
    setSight((before) => (before.from === from && before.to === to ? before : { from, to }));
    if (onEnd && to >= rows.length) onEnd();
  };
  useLayoutEffect(look, [rows.length]);
  useEffect(() => {
    addEventListener("scroll", look, { passive: true });
    addEventListener("resize", look);
    return () => {
      removeEventListener("scroll", look);
      removeEventListener("resize", look);
    };
  }, [rows.length]);
  useEffect(() => {
    const at = chosen ? rows.findIndex((row) => keyOf(row) === chosen) : -1;
    const element = box.current;
    if (at < 0 || !element) return;
    const top = at * ROW;
    if (top < element.scrollTop || top > element.scrollTop + element.clientHeight - 2 * ROW) element.scrollTop = top - ROW * 3;
  }, [chosen]);

  const shown = rows.slice(sight.from, sight.to);
  const after = Math.max(0, rows.length - sight.to);
  return html`<div class="table-box tall virtual" ref=${box} onScroll=${look} tabindex="0" role="region" aria-label=${label}>
    <table aria-rowcount=${(total ?? rows.length) + 1}>
      <thead><tr>${columns.map((column) => html`<th scope="col" class=${classOf(column)}>${column.head ? column.head() : column.name}</th>`)}</tr></thead>
      <tbody>
        ${sight.from > 0 && html`<tr class="spacer" aria-hidden="true"><td colspan=${columns.length} style=${{ height: `${Math.min(sight.from, rows.length) * ROW}px` }}></td></tr>`}
        ${shown.map((row, i) => html`<tr key=${keyOf(row)} aria-rowindex=${sight.from + i + 2} aria-selected=${keyOf(row) === chosen ? "true" : undefined} ...${rowProps ? rowProps(row) : {}}>
          ${render(row).map((cell, at) => html`<td class=${classOf(columns[at])}>${cell}</td>`)}
        </tr>`)}
        ${after > 0 && html`<tr class="spacer" aria-hidden="true"><td colspan=${columns.length} style=${{ height: `${after * ROW}px` }}></td></tr>`}
      </tbody>
    </table>
  </div>`;
}

/** @param {{kind?: string, number?: boolean, narrow?: boolean, medium?: boolean}} column */
const classOf = (column) => `${column.kind || ""} ${column.number ? "number" : ""} ${column.narrow ? "hide-narrow" : ""} ${column.medium ? "hide-medium" : ""}`;
