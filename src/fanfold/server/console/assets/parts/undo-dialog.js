/** Taking back what a run merged into the project: what that does to which file, before it is done. */
import { html, useEffect, useState } from "../vendor/preact.js";
import { post } from "../live/api.js";
import { notify } from "../shell/notices.js";
import { counted } from "../text/format.js";
import { CopyAs } from "./copy-as.js";
import { Dialog } from "./dialog.js";
import { Loading, Trouble } from "./states.js";

/** @param {{run: any, onDone: () => void, onClose: () => void}} props */
export function UndoDialog({ run, onDone, onClose }) {
  const [foreseen, setForeseen] = useState(/** @type {any} */ (null));
  const [error, setError] = useState(/** @type {any} */ (null));
  const [busy, setBusy] = useState(false);
  useEffect(() => {
    // That there is nothing to take back is an answer, not a mishap.
    const none = (/** @type {any} */ failure) => (failure.code === "changes.none" ? setForeseen({ changes: [] }) : setError(failure));
    post(`/runs/${run.run_id}/undo`, { dry_run: true }).then(setForeseen, none);
  }, []);
  const undo = async () => {
    setBusy(true);
    try {
      const done = await post(`/runs/${run.run_id}/undo`);
      notify(`${counted(done.changes.length, "file")} put back.`);
      onClose();
      onDone();
    } catch (failure) {
      setError(failure);
      setBusy(false);
    }
  };
  return html`<${Dialog} title="Undo what it changed" onClose=${onClose} foot=${html`
      <${CopyAs} action="undo" words=${{ run: run.run_id }} />
      <button class="button" onClick=${onClose}>Not now</button>
      <button class="button danger primary" disabled=${busy || !foreseen?.changes.length} onClick=${undo}>${busy ? "Putting back …" : "Undo"}</button>`}>
    <${Trouble} error=${error} />
    ${!error && !foreseen && html`<${Loading} label="Loading what would be reverted" />`}
    ${foreseen && (foreseen.changes.length ? html`<p>The files become what they were before this run merged into them. It stays in the log that they were changed.</p>
      <ul class="changes">${foreseen.changes.map((/** @type {any} */ change) => html`<li key=${change.path}><span class="chip">${change.kind}</span> <code>${change.path}</code></li>`)}</ul>`
      : html`<p>Nothing that this run changed in the project is left to be taken back.</p>`)}
  </${Dialog}>`;
}
