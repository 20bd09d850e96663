/** A run over time, live, with the hours in which nothing ran pressed together. */
import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { amount, briefName, duration, exact, now } from "../text/format.js";
import { Sign, isOver, toneOf, wordOf } from "./status.js";

const ROW = 30;
const GAP_SHARE = 0.05;

/** From times to shares of the width: gaps get a fixed small one. @param {any} line @param {number} until */
function scaleOf(line, until) {
  const gaps = line.gaps.filter((/** @type {any} */ gap) => gap.end <= until);
  const idle = gaps.reduce((/** @type {number} */ sum, /** @type {any} */ gap) => sum + gap.end - gap.start, 0);
  const busy = Math.max(1, until - line.start - idle);
  const room = Math.max(0.4, 1 - gaps.length * GAP_SHARE);
  const each = gaps.length ? (1 - room) / gaps.length : 0;
  return (/** @type {number} */ at) => {
    let x = 0, from = line.start;
    for (const gap of gaps) {
      if (at <= gap.start) break;
      x += ((gap.start - from) / busy) * room;
      x += at >= gap.end ? each : ((at - gap.start) / (gap.end - gap.start)) * each;
      from = Math.min(gap.end, at);
    }
    return (x + (Math.max(0, at - from) / busy) * room) * 100;
  };
}

const MANY = 24;

/** Of a fan-out of many items only those that need attention, until all are wanted. @param {any[]} rows @param {boolean} all @param {string | null | undefined} chosen */
function inSight(rows, all, chosen) {
  /** @type {Map<string, number>} */
  const sizes = new Map();
  const mapOf = (/** @type {string} */ path) => /^(.*?)\[\d+\]/.exec(path)?.[1];
  for (const row of rows) {
    const map = /^(.*)\[\d+\]$/.exec(row.path)?.[1];
    if (map !== undefined) sizes.set(map, (sizes.get(map) || 0) + 1);
  }
  if (all || ![...sizes.values()].some((n) => n > MANY)) return { rows, hidden: "" };
  const kept = rows.filter((row) => {
    const map = mapOf(row.path);
    return map === undefined || (sizes.get(map) || 0) <= MANY || row.path === chosen || ["failed", "timed_out", "running", "waiting"].includes(row.status);
  });
  return { rows: kept, hidden: hiddenText(rows.filter((row) => !kept.includes(row))) };
}

/** What is hidden, by status: "8 completed and 14 pending items hidden". @param {any[]} rows */
function hiddenText(rows) {
  /** @type {Map<string, number>} */
  const counts = new Map();
  for (const row of rows) counts.set(row.status, (counts.get(row.status) || 0) + 1);
  return rows.length ? `${[...counts].map(([status, n]) => `${amount(n)} ${wordOf(status)}`).join(" and ")} ${rows.length === 1 ? "item" : "items"} hidden.` : "";
}

/** @param {{line: any, live: boolean, chosen?: string | null, onChoose: (path: string) => void}} props */
export function Timeline({ line: whole, live, chosen, onChoose }) {
  const [all, setAll] = useState(false);
  const { rows, hidden } = inSight(whole.rows, all, chosen);
  const line = { ...whole, rows };
  const box = useRef(/** @type {HTMLDivElement | null} */ (null));
  const [sight, setSight] = useState({ from: 0, to: 60 });
  const [width, setWidth] = useState(1000);
  const until = live ? Math.max(now.value, line.until) : line.until;
  const at = scaleOf(line, until);
  const look = () => {
    const element = box.current;
    if (!element) return;
    const from = Math.max(0, Math.floor(element.scrollTop / ROW) - 10);
    const to = Math.ceil((element.scrollTop + element.clientHeight) / ROW) + 10;
    setSight((old) => (old.from === from && old.to === to ? old : { from, to }));
    setWidth(element.clientWidth);
  };
  useEffect(look, [line.rows.length]);
  useEffect(() => {
    const place = chosen ? line.rows.findIndex((/** @type {any} */ row) => row.path === chosen) : -1;
    const element = box.current;
    if (place < 0 || !element) return;
    if (place * ROW < element.scrollTop || place * ROW > element.scrollTop + element.clientHeight - 60) element.scrollTop = place * ROW - 60;
  }, [chosen]);
  const gaps = line.gaps.filter((/** @type {any} */ gap) => gap.end <= until);
  const shown = line.rows.slice(sight.from, sight.to);
  return html`${(hidden || all) && html`<p class="small quiet gap-below">${hidden || "All items are shown."} <button class="as-link" onClick=${() => setAll(!all)}>${all ? "Hide finished items" : "Show all"}</button></p>`}
  <div class="timeline" ref=${box} onScroll=${look} tabindex="0" role="region" aria-label="Timeline: steps over time">
    <div class="axis"><div></div><div class="ticks">
      ${ticks(line, until, gaps, width).map((tick) => html`<span class=${`tick ${tick === line.start ? "first" : at(tick) > 92 ? "at-end" : ""}`} key=${tick} style=${{ left: `${at(tick)}%` }} title=${exact(tick)}>${tick === line.start ? "start" : `+${duration(tick - line.start)}`}</span>`)}
      ${gaps.map((/** @type {any} */ gap) => html`<span class=${`gap-name ${at(gap.end) > 90 ? "at-end" : ""}`} key=${gap.start} style=${{ left: `${at(gap.end) > 90 ? 100 : (at(gap.start) + at(gap.end)) / 2}%` }} title=${`Nothing ran from ${exact(gap.start)} to ${exact(gap.end)}`}>${duration(gap.end - gap.start)} idle</span>`)}
    </div></div>
    <div style=${{ height: `${sight.from * ROW}px` }}></div>
    ${shown.map((/** @type {any} */ row) => html`<button type="button" key=${row.path} class=${`span-row ${row.path === chosen ? "chosen" : ""}`} onClick=${() => onChoose(row.path)}
        aria-label=${`${row.label}, ${wordOf(row.status)}, ${spokenSpans(row, until)}`}>
      <span class=${`who tone-${toneOf(row.status)}`} style=${{ paddingLeft: `${16 + row.depth * 14}px` }}><span class=${`status tone-${toneOf(row.status)}`}><${Sign} status=${row.status} size=${14} /></span><span class="clip" title=${row.label}>${briefName(row.label)}</span></span>
      <span class="lane">
        ${gaps.map((/** @type {any} */ gap) => html`<i class="gap" key=${gap.start} style=${{ left: `${at(gap.start)}%`, width: `${at(gap.end) - at(gap.start)}%` }}></i>`)}
        ${row.spans.map((/** @type {any} */ span) => {
          const end = span.end ?? (isOver(row.status) ? span.start : until);
          return html`<i key=${span.start} class=${`bar tone-${toneOf(span.status)} ${row.leaf ? "" : "outer"} ${span.status === "waiting" ? "waits" : ""}`}
            style=${{ left: `${at(span.start)}%`, width: `${Math.max(0, at(end) - at(span.start))}%` }} title=${`${wordOf(span.status)} · ${duration(end - span.start)}${span.attempt > 1 ? ` · attempt ${span.attempt}` : ""}`}></i>`;
        })}
      </span>
    </button>`)}
    <div style=${{ height: `${Math.max(0, line.rows.length - sight.to) * ROW}px` }}></div>
  </div>`;
}

/** @param {any} row @param {number} until */
const spokenSpans = (row, until) =>
  row.spans.length ? row.spans.map((/** @type {any} */ span) => duration((span.end ?? until) - span.start)).join(", then ") : "not started";

/** A handful of round times in which something happened. @param {any} line @param {number} until @param {any[]} gaps @param {number} width */
function ticks(line, until, gaps, width) {
  const most = width < 600 ? 1.5 : 5;
  const whole = until - line.start;
  const busy = whole - gaps.reduce((sum, gap) => sum + gap.end - gap.start, 0);
  const step = [100, 250, 500, 1e3, 2e3, 5e3, 1e4, 3e4, 6e4, 12e4, 3e5, 6e5, 18e5, 36e5, 72e5, 216e5].find((one) => busy / one <= most) || busy / 4 || 1;
  const found = [line.start];
  for (let t = line.start + step; t < until - step / 2 && found.length < 40; t += step) {
    const gap = gaps.find((one) => t > one.start - step / 3 && t < one.end + step / 3);
    if (gap) {
      t = Math.max(t, line.start + Math.ceil((gap.end - line.start) / step) * step);
      continue;
    }
    found.push(t);
  }
  return found.slice(0, 12);
}
