/** What was spent. An unknown cost is a dash, with the reason on hover. */
import { html } from "../vendor/preact.js";
import { cost, money } from "../text/format.js";

const UNKNOWN = "The price of the model is not known.";

/** @param {{usd: number | null | undefined, why?: string}} props */
export const Price = ({ usd, why = UNKNOWN }) => usd === null || usd === undefined ? html`<span title=${why}>–</span>` : html`<span>${money(usd)}</span>`;

/** @param {{usage: any}} props */
export function Cost({ usage }) {
  const text = cost(usage);
  return text === "–" ? html`<span title=${UNKNOWN}>–</span>` : html`<span>${text}</span>`;
}
