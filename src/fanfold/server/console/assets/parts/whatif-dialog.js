/** What another number of slots would have meant: the recorded durations, scheduled anew. Nothing runs. */
import { html, useState } from "../vendor/preact.js";
import { withQuery } from "../live/api.js";
import { useResource } from "../live/resource.js";
import { counted, duration } from "../text/format.js";
import { CopyAs } from "./copy-as.js";
import { Dialog } from "./dialog.js";
import { Loaded } from "./states.js";

/** @param {{run: any, onClose: () => void}} props */
export function WhatIfDialog({ run, onClose }) {
  const [slots, setSlots] = useState("8");
  const asked = /^[1-9]\d{0,3}$/.test(slots) ? slots : null;
  const found = useResource(asked && withQuery(`/whatif/${run.run_id}`, { max_concurrency: asked }));
  return html`<${Dialog} title="What if it had more slots?" onClose=${onClose} foot=${html`
      <${CopyAs} action="whatif" words=${{ run: run.run_id }} /><button class="button" onClick=${onClose}>Close</button>`}>
    <div class="field"><label for="slots">Steps at once</label><input id="slots" type="number" min="1" max="1024" value=${slots} onInput=${(/** @type {any} */ event) => setSlots(event.target.value)} />
      <span class="hint">The recorded durations are scheduled anew with as many slots; no model is asked.</span></div>
    ${asked && html`<${Loaded} of=${found}>${(/** @type {any} */ data) => html`<${Answer} data=${data} />`}</${Loaded}>`}
  </${Dialog}>`;
}

/** @param {{data: any}} props */
const Answer = ({ data }) => html`<dl class="figures">
    <div><dt>It took</dt><dd>${duration(data.time_ms.recorded)} <small>${counted(data.max_concurrency.recorded, "slot")}</small></dd></div>
    <div><dt>It would take</dt><dd>${duration(data.time_ms.asked)} <small>${counted(data.max_concurrency.asked, "slot")}</small></dd></div>
    <div><dt>Never less than</dt><dd>${duration(data.critical_path_ms)}</dd></div>
  </dl>
  <div><h3>The longest chain of steps that wait for one another</h3><p class="chips">${data.critical_path.map((/** @type {string} */ path) => html`<span class="chip" key=${path}>${path}</span>`)}</p></div>
  ${data.notes.map((/** @type {string} */ note) => html`<p class="quiet small" key=${note}>${note}</p>`)}`;
