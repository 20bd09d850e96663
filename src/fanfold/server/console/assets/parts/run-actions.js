/** The actions on a run. Each button reports what happened; actions that cannot be undone ask first. */
import { html, useState } from "../vendor/preact.js";
import { get, post } from "../live/api.js";
import { useStuck } from "../live/pulses.js";
import { go } from "../shell/route.js";
import { notify, notifyError } from "../shell/notices.js";
import { usePhone } from "../shell/width.js";
import { ForkDialog, RetryDialog } from "./again-dialogs.js";
import { CopyDialog } from "./copy-as.js";
import { Confirm, Dialog } from "./dialog.js";
import { Menu } from "./menu.js";
import { isOver } from "./status.js";
import { UndoDialog } from "./undo-dialog.js";
import { WhatIfDialog } from "./whatif-dialog.js";

const LIMITS = [["budget_usd", "Budget in dollars"], ["budget_tokens", "Budget in tokens"], ["max_agents", "Agents at most"], ["max_steps", "Steps at most"]];

/** The present limit, as far as the page knows it. @param {any} run @param {string} name */
const limitOf = (run, name) => (name === "budget_usd" && run.cap.usd !== null ? `now ${run.cap.usd}` : name === "budget_tokens" && run.cap.tokens !== null ? `now ${run.cap.tokens}` : "");

/** Resumes a run that reached a limit, with a higher one. @param {{run: any, onResume: (raised: any) => void, onClose: () => void}} props */
function ResumeDialog({ run, onResume, onClose }) {
  const [raised, setRaised] = useState(/** @type {Record<string, string>} */ ({}));
  const given = Object.fromEntries(Object.entries(raised).filter(([, value]) => value !== "").map(([name, value]) => [name, Number(value)]));
  return html`<${Dialog} title="Resume with higher limits" onClose=${onClose} foot=${html`<button class="button" onClick=${onClose}>Not now</button>
      <button class="button primary" disabled=${!Object.keys(given).length} onClick=${() => { onClose(); onResume(given); }}>Resume</button>`}>
    <p>${run.error?.message || "A limit holds this run."}</p>
    ${LIMITS.map(([name, words]) => html`<div class="field" key=${name}><label for=${`raise-${name}`}>${words}</label><input id=${`raise-${name}`} type="number" min="0" step="any" placeholder=${limitOf(run, name)} value=${raised[name] || ""} onInput=${(/** @type {any} */ event) => setRaised((before) => ({ ...before, [name]: event.target.value }))} /></div>`)}
  </${Dialog}>`;
}

/** @param {{run: any, step: string | null, at: string | null, reload: () => void}} props */
export function RunActions({ run, step, at, reload }) {
  const [asking, setAsking] = useState("");
  const [busy, setBusy] = useState("");
  const over = isOver(run.status) || at !== null; // what was is not steered
  const stuck = useStuck(run) && !over; // its process died: nothing comes of a pause
  const act = async (/** @type {string} */ what, /** @type {any} */ body = {}) => {
    setBusy(what);
    try {
      const done = await post(`/runs/${run.run_id}/${what}`, body);
      if (done.run_id && done.run_id !== run.run_id) go(`/runs/${done.run_id}`);
      else notify(done.said || "Done.");
      reload();
    } catch (error) {
      notifyError(error);
    }
    setBusy("");
  };
  const again = async () => {
    try {
      const recorded = await get(`/runs/${run.run_id}/recipe`);
      if (recorded.in_library) go(`/recipes/${encodeURIComponent(run.recipe)}?view=run&from=${run.run_id}`);
      else setAsking("fork"); // its recipe was a file: the recorded one runs again
    } catch (error) {
      notifyError(error);
    }
  };
  const phone = usePhone();
  const fork = html`<button class="button" onClick=${() => setAsking("fork")}>Fork …</button>`;
  const resume = () => (run.pausing === "budget" ? setAsking("resume") : act("resume"));
  const button = (/** @type {string} */ what, /** @type {string} */ name, kind = "") =>
    html`<button class=${`button ${kind}`} disabled=${busy !== ""} onClick=${() => act(what)}>${busy === what ? "…" : name}</button>`;
  return html`
    ${!over && run.status === "running" && !stuck && button("pause", "Pause")}
    ${!over && (run.status === "paused" || stuck) && html`<button class="button primary" disabled=${busy !== ""} onClick=${resume}>${busy === "resume" ? "…" : "Resume"}</button>`}
    ${!over && html`<button class="button danger" onClick=${() => setAsking("cancel")}>Cancel</button>`}
    ${isOver(run.status) && ["failed", "partial", "timed_out"].includes(run.status) && html`<button class="button primary" onClick=${() => setAsking("retry")}>Retry what failed …</button>`}
    ${isOver(run.status) && !run.parent_run_id && html`<button class="button" onClick=${again} title="Start the recipe with the same inputs">Run again …</button>`}
    ${!phone && fork}
    <${Menu} name="More">
      ${phone && fork}
      ${!over && run.status === "waiting" && html`<button class="button" disabled=${busy !== ""} onClick=${resume}>Resume</button>`}
      <button class="button" onClick=${() => setAsking("copy")}>Copy as …</button>
      <button class="button" onClick=${() => setAsking("whatif")}>What if …</button>
      ${isOver(run.status) && html`<button class="button" onClick=${() => setAsking("undo")}>Undo its changes …</button>`}
      <a class="button" href=${`/api/runs/${run.run_id}/export`} download=${`${run.recipe}-${run.run_id}.html`}>Export as a file</a>
    </${Menu}>
    ${asking === "copy" && html`<${CopyDialog} action="inspect" others=${["watch", "explain", "diff", "pause", "resume", "cancel", "retry", "undo", "whatif", "export"]} words=${{ run: run.run_id }} onClose=${() => setAsking("")} />`}
    ${asking === "whatif" && html`<${WhatIfDialog} run=${run} onClose=${() => setAsking("")} />`}
    ${asking === "undo" && html`<${UndoDialog} run=${run} onDone=${reload} onClose=${() => setAsking("")} />`}
    ${asking === "cancel" && html`<${Confirm} title="Cancel this run?" verb="Cancel the run" onYes=${() => act("cancel")} onClose=${() => setAsking("")}
      text="Its processes are stopped, and those of its child runs. Everything that was recorded stays, and the run can be forked." />`}
    ${asking === "resume" && html`<${ResumeDialog} run=${run} onResume=${(/** @type {any} */ raised) => act("resume", raised)} onClose=${() => setAsking("")} />`}
    ${asking === "fork" && html`<${ForkDialog} run=${run} step=${step} onClose=${() => setAsking("")} />`}
    ${asking === "retry" && html`<${RetryDialog} run=${run} onClose=${() => setAsking("")} />`}`;
}
