/** Copying a text, and saying whether the browser allowed it. */
import { notify } from "../shell/notices.js";

/** @param {string} text */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    notify("Copied.");
  } catch {
    notify("The browser did not allow the page to copy. Select the text instead.", { tone: "wants" });
  }
}
