/** Two panes side by side with a divider that can be dragged; its position is remembered in this browser. */
import { html, useRef, useState } from "../vendor/preact.js";

const KEY = "fanfold-split";
const LEAST = 14;
const MOST = 80;
const STEP = 4;

/** `left` and `right` are the panes; without `right` the left one takes all the room. @param {{left: any, right: any}} props */
export function Split({ left, right }) {
  const [share, setShare] = useState(stored);
  const box = useRef(/** @type {HTMLDivElement | null} */ (null));
  const move = (/** @type {number} */ to) => {
    const next = Math.round(Math.min(MOST, Math.max(LEAST, to)));
    setShare(next);
    try {
      localStorage.setItem(KEY, String(next));
    } catch {
      // Without storage the position lasts as long as this page.
    }
  };
  const drag = (/** @type {PointerEvent} */ event) => {
    if (!(event.buttons & 1) || !box.current) return;
    const { left: edge, width } = box.current.getBoundingClientRect();
    move(((event.clientX - edge) / width) * 100);
  };
  const press = (/** @type {KeyboardEvent} */ event) => {
    const by = event.key === "ArrowLeft" ? -STEP : event.key === "ArrowRight" ? STEP : 0;
    if (!by) return;
    event.preventDefault();
    move(share + by);
  };
  return html`<div class=${`split ${right ? "both" : ""}`} ref=${box} style=${right ? { "--share": `${share}%` } : {}}>
    <div class="pane">${left}</div>
    ${right && html`<div class="divider" role="separator" aria-orientation="vertical" aria-label="Width of the panes" aria-valuenow=${share} aria-valuemin=${LEAST} aria-valuemax=${MOST} tabindex="0"
      onPointerDown=${(/** @type {any} */ event) => event.target.setPointerCapture(event.pointerId)} onPointerMove=${drag} onKeyDown=${press}></div>${right}`}
  </div>`;
}

/** The stored share of the left pane in percent, or a third more for the right one. */
function stored() {
  try {
    const found = Number(localStorage.getItem(KEY));
    if (found >= LEAST && found <= MOST) return found;
  } catch {
    // No storage: the default.
  }
  return 42;
}
