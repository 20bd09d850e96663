/**
 * The graph of a recipe or a run, drawn from positions that the server computed.
 *
 * Only what is in sight is in the page, and from far away a box is a coloured rectangle, so that two thousand steps scroll
 * as smoothly as twenty. The table is its accessible twin.
 */
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../vendor/preact.js";
import { counted } from "../text/format.js";
import { wrapped } from "./graph-rows.js";
import { Sign, isOver, toneOf, wordOf } from "./status.js";

const FAR = 0.42;
const READABLE = 0.8;
const SPARE = 150;
const STRIDE = 200;
const PADDING = 34;

/**
 * `follow`: bring the chosen step into sight.
 * @param {{layout: any, chosen?: string | null, follow?: boolean, onChoose?: (node: any) => void, onToggle?: (node: any) => void, label: string}} props
 */
export function Graph({ layout: whole, chosen: picked, follow = true, onChoose, onToggle, label }) {
  const [room, setRoom] = useState(Infinity);
  const layout = useMemo(() => wrapped(whole, room), [whole, room]);
  const chosen = useMemo(() => standingFor(layout.nodes, picked), [layout, picked]);
  const box = useRef(/** @type {HTMLDivElement | null} */ (null));
  const [zoom, setZoom] = useState(1);
  const [sight, setSight] = useState(/** @type {{x: number, y: number, w: number, h: number} | null} */ (null));
  const [, setScrolled] = useState(0); // draws the minimap again
  const before = useRef(/** @type {Map<string, string>} */ (new Map()));
  const zoomed = useRef(false);

  const look = () => {
    const element = box.current;
    if (!element) return;
    const next = {
      x: Math.floor(element.scrollLeft / zoom / STRIDE) * STRIDE, y: Math.floor(element.scrollTop / zoom / STRIDE) * STRIDE,
      w: element.clientWidth / zoom + STRIDE, h: element.clientHeight / zoom + STRIDE,
    };
    // Only what is beyond the edge by more than its padding counts: nothing of the picture stands in that.
    element.classList.toggle("goes-left", element.scrollLeft > 16);
    element.classList.toggle("goes-right", element.scrollLeft + element.clientWidth < element.scrollWidth - 16);
    setSight((old) => (old && old.x === next.x && old.y === next.y && old.w === next.w && old.h === next.h ? old : next));
    setScrolled(Math.round(element.scrollLeft) * 100003 + Math.round(element.scrollTop));
  };
  const zoomTo = (/** @type {number} */ to) => {
    zoomed.current = true;
    setZoom(Math.max(0.06, Math.min(2, to)));
  };
  const fit = () => box.current && zoomTo(Math.min(1, (box.current.clientWidth - PADDING) / layout.width));
  // It is fitted to its pane until the user zooms. A graph too wide to be read that way opens on its first step.
  const arrange = () => {
    const element = box.current;
    if (!element || zoomed.current) return;
    const fitting = (element.clientWidth - PADDING) / layout.width;
    setZoom(fitting >= READABLE ? Math.min(1, fitting) : READABLE);
  };
  useLayoutEffect(() => setRoom((box.current?.clientWidth ?? Infinity) - PADDING), []);
  useLayoutEffect(arrange, [layout.width]);
  useEffect(() => {
    const watch = new ResizeObserver(() => {
      setRoom((box.current?.clientWidth ?? Infinity) - PADDING);
      arrange();
      look();
    });
    if (box.current) watch.observe(box.current);
    return () => watch.disconnect();
  }, [layout.width]);
  useLayoutEffect(look, [zoom, layout]);
  useEffect(() => {
    const node = chosen && follow && layout.nodes.find((/** @type {any} */ one) => one.path === chosen);
    const element = box.current;
    if (!node || !element) return;
    const left = node.x * zoom, top = node.y * zoom;
    if (left < element.scrollLeft || left + node.w * zoom > element.scrollLeft + element.clientWidth) element.scrollLeft = left - 80;
    if (top < element.scrollTop || top + node.h * zoom > element.scrollTop + element.clientHeight) element.scrollTop = top - 80;
  }, [chosen, follow, layout.width]);

  const changed = useMemo(() => {
    const now = new Map(layout.nodes.map((/** @type {any} */ node) => [node.path, node.status]));
    const found = new Set(layout.nodes.filter((/** @type {any} */ node) => before.current.has(node.path) && before.current.get(node.path) !== node.status).map((/** @type {any} */ node) => node.path));
    before.current = now;
    return found;
  }, [layout]);

  const far = zoom < FAR;
  const [nodes, edges] = useMemo(() => {
    if (!sight) return [[], []]; // it is not known yet how much room there is
    const within = (/** @type {number} */ x, /** @type {number} */ y, /** @type {number} */ w, /** @type {number} */ h) =>
      x < sight.x + sight.w + SPARE && x + w > sight.x - SPARE && y < sight.y + sight.h + SPARE && y + h > sight.y - SPARE;
    const shown = layout.nodes.filter((/** @type {any} */ node) => within(node.x, node.y, node.w, node.h));
    const lines = layout.edges.filter((/** @type {any} */ edge) => {
      const [x0, y0] = edge.points[0];
      const [x1, y1] = edge.points[edge.points.length - 1];
      return edge.turn || within(Math.min(x0, x1), Math.min(y0, y1), Math.abs(x1 - x0) + 1, Math.abs(y1 - y0) + 1);
    });
    return [shown, lines];
  }, [layout, sight]);
  return html`<div class="graph-box">
    <div class="graph-tools" role="group" aria-label="Size of the graph">
      <span>${counted(layout.nodes.length, "step")}${zoom < 0.995 || zoom > 1.005 ? `, ${Math.round(zoom * 100)} %` : ""}</span>
      <button class="button small" onClick=${() => zoomTo(zoom / 1.3)} aria-label="Smaller">−</button>
      <button class="button small" onClick=${() => zoomTo(zoom * 1.3)} aria-label="Larger">+</button>
      <button class="button small" onClick=${fit}>Fit</button>
    </div>
    <div class=${`graph-scroll ${layout.height * zoom < 560 ? "fits" : ""}`} ref=${box} onScroll=${look} tabindex="0" role="region" aria-label=${label}>
      <svg class="graph" width=${layout.width * zoom + 4} height=${layout.height * zoom + 4} viewBox=${`-2 -2 ${layout.width + 4} ${layout.height + 4}`}>
        ${nodes.filter((/** @type {any} */ node) => node.open).map((/** @type {any} */ node) => html`<${OpenBox} key=${node.path} node=${node} onToggle=${onToggle} />`)}
        <path class="edge" d=${edges.map((/** @type {any} */ edge) => (edge.turn ? turned(edge) : curve(edge.points))).join("")} />
        ${!far && html`<path class="tip" d=${edges.map((/** @type {any} */ edge) => tip(edge.points)).join("")} />`}
        ${nodes.filter((/** @type {any} */ node) => !node.open).map((/** @type {any} */ node) => html`<${Box} key=${node.path} node=${node} far=${far}
          chosen=${node.path === chosen} changed=${changed.has(node.path)} onChoose=${onChoose} onToggle=${onToggle} />`)}
      </svg>
    </div>
    <${Minimap} layout=${layout} box=${box} zoom=${zoom} sight=${sight} />
  </div>`;
}

const MAP_WIDTH = 180;
const MAP_HEIGHT = 90;
const MOST_ON_MAP = 400;

/** The whole graph in small, with the part in sight; a click moves there. Only for a graph that does not fit. @param {any} props */
function Minimap({ layout, box, zoom, sight }) {
  const element = box.current;
  if (!element || !sight || layout.nodes.length > MOST_ON_MAP) return null;
  // In a low pane, or beside a graph that is only a little larger, the map would hide steps.
  if (element.clientHeight < 260) return null;
  if (element.scrollWidth <= element.clientWidth * 1.5 && element.scrollHeight <= element.clientHeight * 1.5) return null;
  const scale = Math.min(MAP_WIDTH / layout.width, MAP_HEIGHT / layout.height);
  const move = (/** @type {any} */ event) => {
    const edge = event.currentTarget.getBoundingClientRect();
    element.scrollLeft = ((event.clientX - edge.left) / scale) * zoom - element.clientWidth / 2;
    element.scrollTop = ((event.clientY - edge.top) / scale) * zoom - element.clientHeight / 2;
  };
  return html`<svg class="minimap" width=${layout.width * scale} height=${layout.height * scale} viewBox=${`0 0 ${layout.width} ${layout.height}`} aria-hidden="true" onClick=${move}>
    ${layout.nodes.filter((/** @type {any} */ node) => !node.open).map((/** @type {any} */ node) => html`<rect key=${node.path} class=${`cell tone-${toneOf(node.status)}`} x=${node.x} y=${node.y} width=${node.w} height=${node.h} />`)}
    <rect class="seen" x=${element.scrollLeft / zoom} y=${element.scrollTop / zoom} width=${element.clientWidth / zoom} height=${element.clientHeight / zoom} />
  </svg>`;
}

/** @param {any} props */
function Box({ node, far, chosen, changed, onChoose, onToggle }) {
  const tone = node.status ? `tone-${toneOf(node.status)}` : "";
  const choose = () => onChoose?.(node);
  const press = (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      event.stopPropagation();
      choose();
    }
  };
  const spoken = node.status ? `${node.spoken}, ${wordOf(node.status)}${tallied(node)}` : node.spoken;
  if (far)
    return html`<g class=${`node ${tone} ${chosen ? "chosen" : ""}`} onClick=${choose}><title>${spoken}</title>
      <rect class="far box" x=${node.x} y=${node.y} width=${node.w} height=${node.h} rx="8" /></g>`;
  const canOpen = onToggle && node.kind !== "step" && node.count;
  return html`<g class=${`node ${tone} ${chosen ? "chosen" : ""} ${changed ? "changed" : ""}`} role="button" tabindex="0" aria-label=${spoken}
      data-path=${node.path} onClick=${choose} onKeyDown=${press}>
    <title>${spoken}</title>
    <rect class="box" x=${node.x} y=${node.y} width=${node.w} height=${node.h} rx="9" />
    ${node.status && html`<g class="sign" transform=${`translate(${node.x + 11} ${node.y + 11})`}><${Sign} status=${node.status} /></g>`}
    <text class="title" x=${node.x + (node.status ? 34 : 14)} y=${node.y + 24}>${cut(node.title, node.w - (node.status ? 44 : 24), 8.1)}</text>
    <text class="who" x=${node.x + 14} y=${node.y + 41}>${says(node, (node.w - (canOpen ? 44 : 24)) / 6.5)}</text>
    ${node.marks?.length ? html`<text class="mark" x=${node.x + 14} y=${node.y + (node.count || node.subtitle ? 57 : 41)}>${cut(node.marks.join(" · "), node.w - 24, 5.6)}</text>` : null}
    ${node.cells && html`<${Strip} node=${node} />`}
  </g>${canOpen && html`<${Toggle} node=${node} onToggle=${onToggle} x=${node.x + node.w - 26} y=${node.y + 29} />`}`;
}

/** @param {any} props */
function OpenBox({ node, onToggle }) {
  return html`<g class=${`node ${node.status ? `tone-${toneOf(node.status)}` : ""}`}>
    <rect class="open-box" x=${node.x} y=${node.y} width=${node.w} height=${node.h} rx="11" />
    ${node.status && html`<g class="sign" transform=${`translate(${node.x + 11} ${node.y + 9})`}><${Sign} status=${node.status} /></g>`}
    <text class="title" x=${node.x + (node.status ? 33 : 14)} y=${node.y + 22}>${cut(node.title, node.w - 60, 7.4)} <tspan class="mark" dx="8">${[node.kind === "run" ? node.subtitle : "", ...(node.marks || [])].filter(Boolean).join(" · ")}</tspan></text>
    ${onToggle && node.count ? html`<${Toggle} node=${node} onToggle=${onToggle} x=${node.x + node.w - 27} y=${node.y + 8} />` : null}
  </g>`;
}

/** @param {any} props */
function Toggle({ node, onToggle, x, y }) {
  const act = (/** @type {Event} */ event) => {
    event.stopPropagation();
    onToggle(node);
  };
  const press = (/** @type {KeyboardEvent} */ event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    act(event);
  };
  return html`<g class="toggle" role="button" tabindex="0" aria-expanded=${node.open ? "true" : "false"} aria-label=${`${node.open ? "Close" : "Open"} ${node.title}`} onClick=${act} onKeyDown=${press}>
    <rect x=${x} y=${y} width="18" height="18" rx="5" /><path d=${`M${x + 5} ${y + 9}h8${node.open ? "" : "m-4 -4v8"}`} />
  </g>`;
}

/** Cells of one colour side by side are one rectangle. @param {any} props */
function Strip({ node }) {
  const left = node.x + 14, all = node.w - 28, width = all / node.cells.length, y = node.y + node.h - 16;
  const runs = [];
  for (let i = 0; i < node.cells.length; ) {
    let j = i;
    while (j < node.cells.length && node.cells[j] === node.cells[i]) j += 1;
    // Few cells stand apart; many of one status are one bar.
    if (node.cells.length <= 40) for (let k = i; k < j; k += 1) runs.push([k, k + 1, node.cells[k]]);
    else runs.push([i, j, node.cells[i]]);
    i = j;
  }
  // What needs attention is drawn last and never thinner than can be seen.
  const gap = node.cells.length <= 40 ? 1.5 : 0;
  runs.sort((a, b) => Number(toneOf(String(a[2])) !== "done") - Number(toneOf(String(b[2])) !== "done"));
  return html`<g>${runs.map(([from, to, status]) => html`<rect key=${from} class=${`cell tone-${toneOf(String(status))}`} x=${left + Number(from) * width}
    y=${y} width=${Math.max(status === "completed" ? 0.8 : 3, (Number(to) - Number(from)) * width - gap)} height="8" rx="1.5" />`)}</g>`;
}

/** @param {any} node */
const tallied = (node) => (node.tally ? `: ${Object.entries(node.tally).map(([word, n]) => `${n} ${wordOf(word)}`).join(", ")}` : "");

/** Its role, or how many items have ended; the role only if there is room for both. @param {any} node @param {number} room in characters */
function says(node, room) {
  if (!node.count) return cut(node.subtitle, room, 1);
  const done = Object.entries(node.tally || {}).reduce((sum, [status, n]) => sum + (isOver(status) ? Number(n) : 0), 0);
  const bad = (node.tally?.failed || 0) + (node.tally?.timed_out || 0);
  const counts = `${done}/${node.count}${bad ? `, ${bad} failed` : ""}`;
  const whole = node.subtitle ? `${counts} · ${node.subtitle}` : counts;
  return cut(whole.length > room ? counts : whole, room, 1);
}

/** @param {string} text @param {number} room @param {number} each */
function cut(text, room, each) {
  const fits = Math.max(3, Math.floor(room / each));
  return text.length > fits ? `${text.slice(0, fits - 1)}…` : text;
}

/** The node of a step, or the closed one that contains it. @param {any[]} nodes @param {string | null | undefined} path */
function standingFor(nodes, path) {
  const around = nodes.filter((node) => !node.open && path && (path === node.path || (path.startsWith(node.path) && "[#/".includes(path[node.path.length]))));
  return around.sort((a, b) => b.path.length - a.path.length)[0]?.path ?? null;
}

/** An edge that leaves its row at the right and enters a later row at the left. @param {any} edge */
function turned({ points, turn }) {
  const before = points.slice(0, turn.at), after = points.slice(turn.at);
  const to = after[0][1], r = 6;
  return `${curve(before, 0)}H${turn.right - r}q${r} 0 ${r} ${r}V${turn.between - r}q0 ${r} ${-r} ${r}H${turn.left + r}q${-r} 0 ${-r} ${r}V${to - r}q0 ${r} ${r} ${r}${curve([[turn.left + r, to], ...after]).replace(/^M[^HC]*/, "")}`;
}

/** @param {[number, number][]} points @param {number} [tipped] room for the tip */
function curve(points, tipped = 6) {
  let [x, y] = points[0];
  const parts = [`M${x} ${y}`];
  points.slice(1).forEach(([nx, ny], i) => {
    const to = i === points.length - 2 ? nx - tipped : nx;
    const middle = (x + to) / 2;
    parts.push(ny === y ? `H${to}` : `C${middle} ${y} ${middle} ${ny} ${to} ${ny}`);
    [x, y] = [to, ny];
  });
  return parts.join("");
}

/** @param {[number, number][]} points */
function tip(points) {
  const [x, y] = points[points.length - 1];
  return `M${x} ${y}l-7 -3.8v7.6z`;
}
